"""Many clients replay one long run on a real server: its memory stays small, and it still answers others."""

import asyncio

import httpx2

from tests.api.streaming import new_id, open_stream
from tests.servers import agent_server, peak_mb

EVENTS = 15_000
FOLLOWERS = 24
# Each follower's share was some 4 MB, and each kept event took 4 kB.
GROWTH_LIMIT_MB = 80


def numbers(raw: bytes) -> list[int]:
    lines = (line for line in raw.split(b"\r\n") if line.startswith(b'data: {"number":'))
    return [int(line.removeprefix(b'data: {"number":').split(b",")[0]) for line in lines]


async def test_long_replays_are_complete_and_bounded_in_memory(module_database, tmp_path):
    with agent_server(module_database, tmp_path, project="streams") as server:
        host = "127.0.0.1"
        port = int(server.url.rsplit(":", 1)[1])
        async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
            thread_id = (await http.post("/threads", json={"thread_id": new_id()})).json()["thread_id"]
            before = peak_mb(server.process.pid)
            body = {
                "assistant_id": "long",
                "input": {"count": EVENTS, "size": 200},
                "stream_mode": ["custom"],
                "stream_resumable": True,
            }

            run_id = (await http.post(f"/threads/{thread_id}/runs", json=body)).json()["run_id"]
            assert (await http.get(f"/threads/{thread_id}/runs/{run_id}/join")).status_code == 200
            path = f"/threads/{thread_id}/runs/{run_id}/stream"

            head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nLast-Event-ID: -1\r\n\r\n".encode()
            followers = [await asyncio.open_connection(host, port, limit=2**16) for _ in range(FOLLOWERS)]
            for _, writer in followers:
                writer.write(head)

            for reader, _ in followers:
                assert b" 200 " in await reader.readline()

            # Nobody has read the replay yet: it waits for the sockets, and the server has time for others.
            assert (await http.get("/ok")).status_code == 200

            for _, writer in followers[1:]:
                writer.transport.abort()

            assert (await http.get("/ok")).status_code == 200
            followers[0][1].transport.abort()
            async with open_stream(http, "GET", path, headers={"Last-Event-ID": "-1"}) as stream:
                received = b"".join([event.raw async for event in stream if event.name == "custom"])

            assert numbers(received) == list(range(EVENTS))
            assert peak_mb(server.process.pid) - before < GROWTH_LIMIT_MB
