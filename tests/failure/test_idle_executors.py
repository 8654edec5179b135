"""A server whose graphs have no work: no executor lives, its memory is small, and what is known of the graphs is kept.

The server is started as a user starts it: the process that tests fork servers from has imported everything.
"""

from pathlib import Path
from typing import Any

import httpx2

from tests.conftest import eventually
from tests.servers import PROJECTS, ServerProcess, free_port

IDLE_BYTES = 70_000_000
ECHO = {"assistant_id": "echo", "input": {"messages": [{"role": "user", "content": "hi"}]}}


def server_on(database_url: str, folder: Path, **settings: str) -> ServerProcess:
    port = free_port()
    settings = {"DATABASE_URI": database_url, "LANGSMITH_TRACING": "false", "EXECUTORS": "1", **settings}
    arguments = ["serve", "--config", str(PROJECTS / "graphs" / "langgraph.json"), "--port", str(port)]
    return ServerProcess(arguments, f"http://127.0.0.1:{port}", settings, folder / "server.log")


def list_children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def read_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def read_descriptions(client: httpx2.Client) -> dict[str, Any]:
    assistants = client.post("/assistants/search", json={"limit": 100}).json()
    [echo] = [each["assistant_id"] for each in assistants if each["graph_id"] == "echo"]
    return {what: client.get(f"/assistants/{echo}/{what}").json() for what in ("schemas", "graph", "subgraphs")}


async def test_idle_server_has_no_executor_and_little_memory(agent_databases, tmp_path):
    known = {"EXECUTOR_IDLE_SECS": "1", "EXECUTOR_KNOWN_GRAPHS": str(tmp_path / "known")}
    server = server_on(await agent_databases(), tmp_path, **known)
    try:
        server.start()
        assert server.process is not None
        with httpx2.Client(base_url=server.url, timeout=300) as client:
            before = read_descriptions(client)
            info = client.get("/info").json()
            assert before["schemas"]["input_schema"]
            pid = server.process.pid

            # Its end: the project loaded, and there was no other work.
            await eventually(lambda: none_left(pid))

        server.stop()
        server.start()

        pid = server.process.pid
        with httpx2.Client(base_url=server.url, timeout=300) as client:
            assert (read_descriptions(client), client.get("/info").json()) == (before, info)
            assert list_children(pid) == [], "what is known of the graphs needs no executor"
            assert read_memory(pid) < IDLE_BYTES
            answer = client.post("/runs/wait", json=ECHO).json()
            assert answer["messages"][-1]["content"], "the first work starts an executor"
            await eventually(lambda: none_left(pid))
            assert read_memory(pid) < IDLE_BYTES
    finally:
        server.stop()


async def none_left(pid: int) -> bool:
    return not list_children(pid)


async def test_unreadable_file_counts_as_missing(agent_databases, tmp_path):
    (tmp_path / "known.python").write_bytes(b"\xc1 damaged")
    server = server_on(await agent_databases(), tmp_path, EXECUTOR_KNOWN_GRAPHS=str(tmp_path / "known"))
    try:
        server.start()
        assert server.process is not None
        assert len(list_children(server.process.pid)) == 1
        assert b"damaged" not in (tmp_path / "known.python").read_bytes()
    finally:
        server.stop()
