"""The least that a durable run can cost, measured with servers of a few lines: `python -m bench.floor`.

Each server has one part more than the one before: HTTP, two statements for each run, a checkpointer that stores
nothing, a thread of its own for graphs. The last one stands for runs on threads: its checkpointer encodes, and two more
statements read and write the thread's state. None of them has a queue, events, leases or access control, or can resume
a run. Prints the CPU of the process for each run of 16 clients, beside the bare graph and Portside: the least of three
rounds.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "project")]

import asyncpg  # noqa: E402
import graphs  # noqa: E402
import uvicorn  # noqa: E402
import uvloop  # noqa: E402
from bench import bare  # noqa: E402
from bench.agent_server import ours, wait  # noqa: E402
from bench.client import cpu_s, load  # noqa: E402
from langgraph.checkpoint.base import BaseCheckpointSaver  # noqa: E402
from tests.servers import free_port  # noqa: E402
from uuid_utils import uuid7  # noqa: E402

CLIENTS = 16
ROUNDS = 3
SECONDS = 4.0
LEVELS = (
    "HTTP",
    "two statements",
    "a checkpointer that stores nothing",
    "a thread for graphs",
    "checkpoints of a thread",
)
TABLE = """
create unlogged table if not exists floor_runs (id uuid primary key, status text, input text, output text);
create unlogged table if not exists floor_checkpoints (id uuid primary key, body text)
"""
BEGIN = """
insert into floor_runs (id, input, status)
select id, input, 'running' from unnest($1::uuid[], $2::text[]) as b (id, input)
"""
READ = """
select c.body from unnest($1::uuid[], $2::text[]) as r (id, namespace)
left join floor_checkpoints c on c.id = r.id
"""
WRITE = "insert into floor_checkpoints select * from unnest($1::uuid[], $2::text[])"
END = """
update floor_runs r set status = 'success', output = e.output
from unnest($1::uuid[], $2::text[]) as e (id, output) where r.id = e.id
"""


class NothingSaver(BaseCheckpointSaver[int]):
    """A checkpointer that stores nothing."""

    async def aget_tuple(self, _config: Any) -> None:
        return None

    async def aput(self, config: Any, checkpoint: Any, *_rest: Any) -> Any:
        return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}

    async def aput_writes(self, *_written: Any) -> None:
        pass


class EncodingSaver(NothingSaver):
    """A checkpointer that encodes what it would store."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: dict[str, list[bytes]] = {}

    async def aput(self, config: Any, checkpoint: Any, *_rest: Any) -> Any:
        self.encode(config, checkpoint)
        return await super().aput(config, checkpoint)

    async def aput_writes(self, config: Any, writes: Any, *_rest: Any) -> None:
        self.encode(config, writes)

    def encode(self, config: Any, value: Any) -> None:
        self.encoded.setdefault(config["configurable"]["thread_id"], []).append(self.serde.dumps_typed(value)[1])


class Statements:
    """The begin or the end of the runs of all clients that ask at the same time, in one statement."""

    def __init__(self, pool: asyncpg.Pool, statement: str) -> None:
        self._pool = pool
        self._statement = statement
        self._waiting: list[tuple[Any, str, asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def add(self, run_id: Any, text: str) -> None:
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((run_id, text, done))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())

        await done

    async def _send(self) -> None:
        while self._waiting:
            batch = self._waiting
            self._waiting = []
            ids = [each[0] for each in batch]
            await self._pool.execute(self._statement, ids, [each[1] for each in batch])

            for *_, done in batch:
                done.set_result(None)

        self._sending = None


async def serve(level: int, port: int, database_url: str) -> None:
    pool = await asyncpg.create_pool(database_url, min_size=2, max_size=4)
    begins, reads, writes, ends = (Statements(pool, each) for each in (BEGIN, READ, WRITE, END))
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    saver = EncodingSaver() if level > 3 else NothingSaver()
    graph = graphs.echo.copy(update={"checkpointer": saver}) if level > 1 else graphs.echo

    async def execute(run_id: Any, given: Any) -> Any:
        if level < 2:
            return await graph.ainvoke(given)

        config = {"configurable": {"thread_id": str(run_id)}}
        return await graph.ainvoke(given, config, durability="async")

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        given = json.loads(body)["input"]

        run_id = uuid7()
        if level > 0:
            await begins.add(run_id, body.decode())

        working = execute(run_id, given)
        if level > 2:
            working = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(working, loop))

        if level > 3:
            await reads.add(run_id, "")

        values = await working
        if isinstance(saver, EncodingSaver):
            await writes.add(run_id, b"".join(saver.encoded.pop(str(run_id))).hex())

        answer = json.dumps({**values, "messages": [each.model_dump() for each in values["messages"]]}).encode()
        if level > 0:
            await ends.add(run_id, answer.decode())

        length = str(len(answer)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    config = uvicorn.Config(app, port=port, log_level="warning", access_log=False, lifespan="off")
    await uvicorn.Server(config).serve()


async def measure(port: int, pid: int) -> float:
    """Return milliseconds of CPU for each run."""
    await load(port, CLIENTS, wait, 1.0)
    before = cpu_s(pid)
    done = await load(port, CLIENTS, wait, SECONDS)
    return (cpu_s(pid) - before) / len(done.times) * 1000


async def compare(port: int, pid: int, database: str) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute(TABLE)
    await connection.close()

    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        found.setdefault("bare graph", []).append(await bare_ms())

        for level, name in enumerate(LEVELS):
            own = free_port()
            command = [sys.executable, __file__, "serve", str(level), str(own), database]
            with await asyncio.to_thread(subprocess.Popen, command) as server:
                try:
                    await until_up(own, server)
                    found.setdefault(name, []).append(await measure(own, server.pid))
                finally:
                    server.terminate()

        found.setdefault("portside", []).append(await measure(port, pid))

    least = min(found["bare graph"])
    for name, figures in found.items():
        print(f"{name:40} {min(figures):6.2f} ms  {min(figures) / least:5.2f}")


async def bare_ms() -> float:
    command = [sys.executable, __file__, "bare"]
    done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
    return float(done.stdout)


async def until_up(port: int, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            await load(port, 1, wait, 0.1)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            return

    raise RuntimeError(f"the server ended with status {server.returncode} before it answered")


async def bare_load() -> float:
    await bare.load(CLIENTS, bare.echo, 1.0)
    began = time.process_time()
    times, _ = await bare.load(CLIENTS, bare.echo, SECONDS)
    return (time.process_time() - began) / len(times) * 1000


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
    elif sys.argv[1:2] == ["bare"]:
        print(uvloop.run(bare_load()))
    else:
        with ours() as (server, _):
            asyncio.run(compare(server.port, server.pid, str(server.database)))


if __name__ == "__main__":
    main()
