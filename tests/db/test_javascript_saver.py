"""The checkpointer of JavaScript graphs passes LangGraph's validation suite, and long values are read as they were put.

Long values are stored in pieces, on Postgres.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest
from langgraph.store.memory import InMemoryStore

from portside.agent.checkpoints.postgres_backend import PostgresBackend
from portside.agent.executors.serving import ExecutorRequests, Scopes
from portside.executor.link import Link
from portside.kernel.db import Database
from tests.javascript import build_bundle, run_command

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
async def url(agent_databases: Callable[[], Awaitable[str]]) -> str:
    return await agent_databases()


@pytest.fixture
async def db(url: str) -> AsyncIterator[Database]:
    database = await Database.connect(url, max_size=5, schema="portside")
    yield database
    await database.close()


@asynccontextmanager
async def serve_checkpoints(db: Database, socket: Path) -> AsyncIterator[None]:
    """Serve the checkpoints of a database to the scripts, at a socket."""
    executor = cast("Any", SimpleNamespace(runs={}, callers={}))
    requests = ExecutorRequests(Scopes(PostgresBackend(db)), InMemoryStore())
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: Link(requests.handlers(lambda: executor)), str(socket))

    yield
    server.close()
    await server.wait_closed()


@pytest.mark.thorough
async def test_validation_suite(db: Database, tmp_path: Path):
    bundle = await build_bundle("saver", tmp_path)
    project = bundle.parent
    async with serve_checkpoints(db, tmp_path / "link"):
        output = await run_command(
            str(project / "node_modules" / ".bin" / "vitest"),
            "run",
            "--globals",
            "--test-timeout=60000",
            bundle.name,
            cwd=project,
            PORTSIDE_SOCKET=str(tmp_path / "link"),
            PORTSIDE_PROJECT=str(project),
            NO_COLOR="1",
        )

    assert " passed" in output
    assert " failed" not in output


async def put_and_read(db: Database, folder: Path, *, seed: int, runs: int) -> dict[str, Any]:
    """Put values that a seed makes, and read them again; return how much was put and what differed."""
    bundle = await build_bundle("pieces", folder)
    given = {
        "PORTSIDE_SOCKET": str(folder / "link"),
        "PORTSIDE_PROJECT": str(bundle.parent),
        "SEED": str(seed),
        "RUNS": str(runs),
    }

    async with serve_checkpoints(db, folder / "link"):
        output = await run_command("node", bundle.name, cwd=bundle.parent, **given)

    return dict(json.loads(output))


async def test_random_long_values_are_read_as_they_were_put(db: Database, tmp_path: Path):
    found = await put_and_read(db, tmp_path, seed=random.randrange(2**31), runs=60)
    assert (found["seen"], found["failures"]) == (found["wanted"], [])


async def test_long_values_are_stored_once_and_read_as_they_were_put(db: Database, url: str, tmp_path: Path):
    # Always the same values: what can be stored once differs from seed to seed.
    found = await put_and_read(db, tmp_path, seed=1, runs=20)
    assert (found["seen"], found["failures"]) == (found["wanted"], [])
    connection = await asyncpg.connect(url)

    stored = await connection.fetchrow(
        """select (select sum(octet_length(data)) from portside.checkpoint_values)
             + (select sum(octet_length(data)) from portside.checkpoint_writes)
             + (select sum(octet_length(data)) from portside.checkpoint_pieces) as bytes,
             (select count(*) from portside.checkpoint_pieces where leaves = 0) as opened,
             (select count(*) from portside.checkpoint_writes where pieces is not null) as writes"""
    )

    await connection.close()
    assert stored["bytes"] < found["put"] / 2

    # Some dicts were opened inside, and some writes were cut.
    assert stored["opened"] > 0
    assert stored["writes"] > 0
