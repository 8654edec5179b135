"""Measures what a conversation costs: `python -m bench.conversations [TURNS] [javascript]`, by default of 200 turns.

A turn is a message of 400 characters and two answers, of 600 and of 400. The same conversation goes to Portside over
HTTP, to langgraph's own Postgres saver in a process on the same Postgres, and to langgraph's saver for memory, which
stands for the bare graph. CPU and bytes are measured rather than times, which other programs on the machine change.
With `javascript` it goes to Portside alone, with the same graphs in Python and in TypeScript.
"""

import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "project")]

import asyncpg  # noqa: E402
import graphs  # noqa: E402
from bench.agent_server import Server, find_postmaster, ours  # noqa: E402
from bench.client import Connection, cpu_s  # noqa: E402
from tests.node_packages import JAVASCRIPT_PROJECT, install_packages, javascript_runtime  # noqa: E402

SAID = 1400
WARM_UP = 20
SAMPLE = 20
# With fewer, the early and the late turns would be the same ones.
FEWEST_TURNS = WARM_UP + 2 * SAMPLE
TABLES = ("threads", "runs", "checkpoints", "checkpoint_values", "checkpoint_pieces", "checkpoint_writes")
# langgraph's Postgres saver and what it needs beside langgraph.
SAVER = ("langgraph-checkpoint-postgres==3.2.0", "psycopg==3.3.4", "psycopg-binary==3.3.4", "psycopg-pool==3.3.1")


def text() -> str:
    return "".join(random.choices(graphs.LETTERS, k=400))


async def converse(turn, turns: int, cpu, wal) -> dict[str, float]:
    """Take turns; return the cost of an early and of a late one, and what all of them wrote to the log of Postgres."""
    costs: list[tuple[float, float]] = []
    began = await wal()

    for _ in range(turns):
        before = cpu(), await wal()
        await turn()
        costs.append((cpu() - before[0], (await wal()) - before[1]))

    early = costs[WARM_UP : WARM_UP + SAMPLE]
    late = costs[-SAMPLE:]
    return {
        "CPU of an early turn, ms": statistics.mean(cost[0] for cost in early) * 1000,
        "CPU of a late turn, ms": statistics.mean(cost[0] for cost in late) * 1000,
        "WAL of an early turn, kB": statistics.median(cost[1] for cost in early) / 1000,
        "WAL of a late turn, kB": statistics.median(cost[1] for cost in late) / 1000,
        "WAL in all, MB": (await wal() - began) / 1e6,
    }


async def portside(server: Server, postgres: int, assistant: str, turns: int) -> dict[str, float]:
    """Return the figures of a conversation over HTTP, with the bytes that it added to each table."""
    database = await asyncpg.connect(server.database)
    client = Connection(server.port)
    await client.open()
    thread_id = json.loads(await client.send("POST", "/threads", {}))["thread_id"]
    sizes = await table_sizes(database)

    async def turn() -> None:
        given = {"messages": [{"role": "user", "content": text()}]} if assistant == "conversation" else {"count": 0}
        await client.send("POST", f"/threads/{thread_id}/runs/wait", {"assistant_id": assistant, "input": given})

    found = await converse(turn, turns, lambda: cpu_s(server.pid) + cpu_s(postgres), lambda: database.fetchval(WAL))
    after = await table_sizes(database)
    found["stored in all, MB"] = sum(after.values()) - sum(sizes.values())
    found |= {f"stored in {name}, MB": after[name] - sizes[name] for name in after}
    found["dead rows of threads"] = await database.fetchval(
        "select pg_stat_force_next_flush(), n_dead_tup from pg_stat_user_tables where relname = 'threads'", column=1
    )

    for name, path in (("state", "state"), ("history page", "history?limit=10")):
        before = cpu_s(server.pid) + cpu_s(postgres)

        for _ in range(10):
            # Another thread in between would do: the cached answer of an unchanged state is another measurement.
            await client.send("PATCH", f"/threads/{thread_id}/state", {"metadata": {"n": random.random()}})
            answer = await client.send("GET", f"/threads/{thread_id}/{path}")

        found[f"CPU of reading a {name}, ms"] = (cpu_s(server.pid) + cpu_s(postgres) - before) * 100
        found[f"bytes of a {name}, kB"] = len(answer) / 1000

    await database.close()
    return found


WAL = "select (pg_current_wal_insert_lsn() - '0/0')::float8"


async def table_sizes(database) -> dict[str, float]:
    rows = await database.fetch(
        "select relname, pg_total_relation_size(oid) / 1e6::float8 as mb from pg_class"
        " where relname = any($1) and relkind = 'r'",
        list(TABLES),
    )

    return {row["relname"]: row["mb"] for row in rows}


async def in_process(turns: int, url: str | None) -> dict[str, float]:
    """Return the figures of langgraph's own savers: in Postgres, or in memory without a URL."""
    if url is None:
        from langgraph.checkpoint.memory import InMemorySaver

        return await own_saver(InMemorySaver(), turns, None, None)

    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    async with AsyncPostgresSaver.from_conn_string(url) as saver:
        await saver.setup()
        backend = (await (await saver.conn.execute("select pg_backend_pid() as pid")).fetchone())["pid"]
        database = await asyncpg.connect(url)
        found = await own_saver(saver, turns, backend, database)

        found["stored in all, MB"] = await database.fetchval(
            "select sum(pg_total_relation_size(oid)) / 1e6::float8 from pg_class"
            " where relkind = 'r' and relname ~ '^checkpoint'"
        )

        await database.close()
        return found


async def own_saver(saver, turns: int, backend: int | None, database) -> dict[str, float]:
    graph = graphs.conversation_builder.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "one"}}

    async def turn() -> None:
        await graph.ainvoke({"messages": [{"role": "user", "content": text()}]}, config)

    async def wal() -> float:
        return 0.0 if database is None else await database.fetchval(WAL)

    return await converse(turn, turns, lambda: time.process_time() + (cpu_s(backend) if backend else 0), wal)


def own_savers(turns: int, url: str) -> dict[str, dict[str, float]]:
    """Run langgraph's savers in processes of their own; its Postgres saver is installed into a cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "portside" / "postgres-saver"
    if not (cache / "complete").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(cache), *SAVER]
        subprocess.run(command, check=True)
        (cache / "complete").touch()

    found = {}
    for name, arguments in (("langgraph's Postgres saver", [url]), ("langgraph's saver for memory", [])):
        code = f"""
import sys, importlib, json, asyncio
sys.path.append({str(cache)!r})
import langgraph.checkpoint
langgraph.checkpoint.__path__ = [*langgraph.checkpoint.__path__, {str(cache / "langgraph" / "checkpoint")!r}]
from bench.conversations import in_process
print(json.dumps(asyncio.run(in_process({turns}, *({arguments!r} or [None])))))
"""

        answer = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
        found[name] = json.loads(answer)

    return found


async def separate_database(url: str) -> str:
    database = await asyncpg.connect(url)
    await database.execute("create database savers")
    await database.close()
    return urlsplit(url)._replace(path="/savers").geturl()


def in_portside(turns: int, server: Server) -> dict[str, dict[str, float]]:
    postgres = asyncio.run(find_postmaster(str(server.database)))
    tiny = asyncio.run(portside(server, postgres, "tiny", turns))
    long = asyncio.run(portside(server, postgres, "conversation", turns))
    return {"portside": long, "portside, tiny state": tiny}


def in_javascript(turns: int) -> dict[str, dict[str, float]]:
    """Return the figures of the same graphs in TypeScript."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(Path(__file__).parent / "javascript" / "conversations.ts", folder)
        graphs_of = {name: f"./conversations.ts:{name}" for name in ("conversation", "tiny")}
        Path(folder, "langgraph.json").write_text(json.dumps({"node_version": "20", "graphs": graphs_of}))
        Path(folder, "node_modules").symlink_to(install_packages(JAVASCRIPT_PROJECT) / "node_modules")

        with ours(Path(folder), EXECUTOR_JAVASCRIPT=str(javascript_runtime())) as (server, _):
            return in_portside(turns, server)


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    if turns < FEWEST_TURNS:
        sys.exit(
            f"Give {FEWEST_TURNS} turns or more: {SAMPLE} early and {SAMPLE} late turns follow {WARM_UP} to warm up."
        )

    with ours() as (server, _):
        found = in_portside(turns, server)
        if sys.argv[2:] != ["javascript"]:
            found |= own_savers(turns, asyncio.run(separate_database(server.database)))

    said = SAID * turns / 1e6
    print(f"{turns} turns, {said:.2f} MB said")
    report(found, said)

    if sys.argv[2:] == ["javascript"]:
        print("in TypeScript:")
        report(in_javascript(turns), said)


def report(found: dict[str, dict[str, float]], said: float) -> None:
    for name in dict.fromkeys(name for column in found.values() for name in column):
        figures = [column.get(name) for column in found.values()]
        print(f"{name:<36}" + "".join(f"{'-':>14}" if one is None else f"{one:14.2f}" for one in figures))

    print(f"{'':<36}" + "  ".join(found))
    mine, tiny, *savers = (column["stored in all, MB"] for column in list(found.values())[:3] if column)
    print(f"stored beyond a tiny state / said: {(mine - tiny) / said:.1f}")

    if savers:
        print(f"stored, portside / langgraph's Postgres saver: {mine / savers[0]:.3f}")


if __name__ == "__main__":
    main()
