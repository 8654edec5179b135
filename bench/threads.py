"""Measures searches among many threads, over HTTP. A part of `make bench`."""

import asyncio
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import asyncpg

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from bench.client import Connection, load, percentiles  # noqa: E402
from tests.servers import PROJECTS, ServerProcess, free_port  # noqa: E402

from portside.kernel.embedded import EmbeddedPostgres  # noqa: E402

THREADS = int(os.environ.get("BENCH_THREADS", "100000"))
CLIENTS = int(os.environ.get("BENCH_CLIENTS", "4"))
Body = dict[str, object]

# Threads of 5,000 users with six messages each, about 2.5 kB of values. One in fifty waits, one in five hundred runs.
FILL = """
insert into portside.threads (
    thread_id, metadata, status, created_at, updated_at, state_updated_at, "values", interrupts
)
select
    md5(n::text)::uuid,
    jsonb_build_object(
        'graph_id', 'echo', 'assistant_id', '046b5dc7-2108-582c-9c6c-31d556d138f0', 'user_id', 'user-' || n % 5000,
        'tier', (array['free', 'pro', 'team'])[1 + n % 3], 'title', 'Conversation ' || n
    ),
    case when n % 50 = 0 then 'interrupted' when n % 100 = 1 then 'error' when n % 500 = 3 then 'busy' else 'idle' end,
    now() - make_interval(secs => n * 7),
    now() - make_interval(secs => (n * 7919) % 604800), now() - make_interval(secs => (n * 7919) % 604800),
    jsonb_build_object(
        'stage', (array['open', 'waiting', 'done'])[1 + n % 3], 'customer', 'customer-' || n % 2000,
        'messages', (
            select jsonb_agg(jsonb_build_object(
                'id', md5(n || '-' || place), 'type', (array['human', 'ai'])[1 + place % 2], 'name', null,
                'content', repeat(md5(n || ' ' || place) || ' lorem ipsum ', 6),
                'additional_kwargs', '{}'::jsonb, 'response_metadata', '{}'::jsonb
            ))
            from generate_series(1, 6) place
        )
    ),
    '{}'
from generate_series(1, $1::int) n
"""


def some(limit: int) -> int:
    return random.randrange(limit)


def thread_id(number: int) -> str:
    from hashlib import md5
    from uuid import UUID

    return str(UUID(md5(str(number).encode(), usedforsecurity=False).hexdigest()))


def message_id(number: int) -> str:
    from hashlib import md5

    return md5(f"{number}-{1 + some(6)}".encode(), usedforsecurity=False).hexdigest()


SEARCHES: dict[str, Callable[[], Body]] = {
    "plain": dict,
    "plain, without values": lambda: {"select": ["thread_id", "status", "metadata", "updated_at"]},
    "plain, page 500": lambda: {"offset": 5000},
    "oldest first": lambda: {"sort_by": "created_at", "sort_order": "asc"},
    "status interrupted": lambda: {"status": "interrupted"},
    "status idle": lambda: {"status": "idle"},
    "metadata, one user": lambda: {"metadata": {"user_id": f"user-{some(5000)}"}},
    "metadata, the graph of all": lambda: {"metadata": {"graph_id": "echo"}},
    "metadata, a third": lambda: {"metadata": {"tier": "pro"}},
    "metadata and status": lambda: {"metadata": {"user_id": f"user-{some(5000)}"}, "status": "idle"},
    "100 ids": lambda: {"ids": [thread_id(1 + some(THREADS)) for _ in range(100)], "limit": 100},
    "values, one customer": lambda: {"values": {"customer": f"customer-{some(2000)}"}},
    "values, in a list": lambda: {"values": {"messages": [{"id": message_id(1 + some(THREADS))}]}},
    "values, a third": lambda: {"values": {"stage": "done"}},
    "extract": lambda: {"select": ["thread_id"], "extract": {"last": "values.messages[-1].content"}},
}


async def fill(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(FILL, THREADS, timeout=900)
    await connection.execute("vacuum analyze portside.threads", timeout=900)
    await connection.close()


def measure(port: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, body in SEARCHES.items():

        async def search(connection: Connection, body: Callable[[], Body] = body) -> bytes:
            return await connection.send("POST", "/threads/search", body())

        done = asyncio.run(load(port, CLIENTS, search))
        p50, p99 = percentiles(done.times)
        found[name] = {"per_s": done.per_s, "p50_ms": p50, "p99_ms": p99}

    return found


def measure_searches() -> dict[str, dict[str, float]]:
    """Fill a database with threads and search among them."""
    with tempfile.TemporaryDirectory() as folder:
        embedded = EmbeddedPostgres(Path(folder))
        url = embedded.acquire()
        port = free_port()
        settings = {"DATABASE_URI": url, "LANGSMITH_TRACING": "false", "LOG_LEVEL": "WARNING"}
        arguments = ["serve", "--config", str(PROJECTS / "graphs" / "langgraph.json"), "--port", str(port)]

        server = ServerProcess(arguments, f"http://127.0.0.1:{port}", settings, Path(folder) / "log")
        try:
            server.start()
            asyncio.run(fill(url))
            return measure(port)
        finally:
            server.stop(signal.SIGINT)
            embedded.release()
