"""The checkpointer of JavaScript graphs passes LangGraph's own validation suite, on Postgres."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from langgraph.store.memory import InMemoryStore

from portside.agent.checkpoints.backend import PostgresBackend
from portside.agent.executors.serving import ExecutorRequests, Scopes
from portside.executor.link import Link
from portside.kernel.db import Database
from portside.kernel.migrations import migrate
from tests.node_packages import JAVASCRIPT_PROJECT, SCRIPTS, copy_of_project, unavailable

EXECUTOR = Path(__file__).parents[2] / "executor-js"
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.fixture
async def db(fresh_database: Callable[[], Awaitable[str]]) -> AsyncIterator[Database]:
    database = await Database.connect(await fresh_database(), max_size=5, schema="portside")
    await migrate(database, ["portside.agent"], schema="portside")
    yield database
    await database.close()


async def run(*command: str, cwd: Path, **variables: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-6000:]
    return output.decode()


async def test_validation_suite(db: Database, tmp_path: Path):
    bundler = EXECUTOR / "node_modules" / ".bin" / "esbuild"
    if not bundler.exists():
        unavailable("the executor of JavaScript graphs is not built here")
    project = copy_of_project(tmp_path / "project", JAVASCRIPT_PROJECT)
    bundle = project / "saver.test.mjs"
    options = [
        "--bundle",
        "--platform=node",
        "--format=esm",
        "--target=node20",
        "--external:@langchain/*",
        f"--outfile={bundle}",
    ]
    await run(str(bundler), str(SCRIPTS / "saver.ts"), *options, cwd=EXECUTOR)
    executor = cast("Any", SimpleNamespace(runs={}, callers={}))
    requests = ExecutorRequests(Scopes(PostgresBackend(db)), InMemoryStore())
    socket = str(tmp_path / "link")
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: Link(requests.handlers(lambda: executor)), socket)
    output = await run(
        str(project / "node_modules" / ".bin" / "vitest"), "run", "--globals", "--test-timeout=60000", bundle.name,
        cwd=project, PORTSIDE_SOCKET=socket, PORTSIDE_PROJECT=str(project), NO_COLOR="1",
    )  # fmt: skip
    server.close()
    await server.wait_closed()
    assert " passed" in output
    assert " failed" not in output
