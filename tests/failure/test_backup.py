"""A platform with an agent is backed up under load, and comes back on an empty machine by two commands.

Everything that was acknowledged before the backup began is there, an interrupted run goes on, every secret opens.
"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx2
import pytest
from langgraph_sdk import get_client

from portside.cli.client import USAGE
from portside.kernel.embedded import EmbeddedPostgres, find_program
from tests.conftest import eventually
from tests.preloaded import run_command
from tests.repositories import Repository
from tests.servers import KEY, PROJECTS, ServerProcess, free_port, platform_server

pytestmark = [pytest.mark.timeout(900), pytest.mark.thorough]

AGENT = """
import time
from pathlib import Path
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    seen: int
    until: str

def count(state: State) -> State:
    return {"seen": state.get("seen", 0) + 1}

def hold(state: State) -> State:
    # Until a file exists, so that a test decides when the run ends.
    while state.get("until") and not Path(state["until"]).exists():
        time.sleep(0.05)
    return {}

graph = StateGraph(State).add_node("count", count).add_node("hold", hold)
graph = graph.add_edge(START, "count").add_edge("count", "hold").compile()
"""
CONFIG = """
{"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"},
 "store": {"index": {"embed": "./embed.py:embed", "dims": 4, "fields": ["text"]}}}
"""
HEADERS = {"X-Api-Key": KEY}
RUN = {
    "name": "model",
    "run_type": "llm",
    "session_name": "restored",
    "start_time": "2026-01-01T00:00:00Z",
    "end_time": "2026-01-01T00:00:02Z",
    "inputs": {"text": "hi"},
    "outputs": {"usage_metadata": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}},
    "events": [{"name": "new_token", "time": "2026-01-01T00:00:01Z"}],
}


@dataclass
class Original:
    """A platform with data, the ids of things in it, and the file that lets its interrupted run end."""

    server: ServerProcess
    home: Path
    url: str
    deployment: str
    agent: str
    thread: str
    run: str
    held_thread: str
    held_run: str
    gate: Path
    acknowledged: list[str] = field(default_factory=list)


def portside(*arguments: str, **environment: str) -> str:
    """Run a command that must succeed, and return its output."""
    settings = {"DATABASE_URL": "", "PORTSIDE_BACKUP_PASSPHRASE": "correct horse battery", **environment}
    done = run_command(*arguments, environment={**os.environ, **settings})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dump_schema(url: str) -> str:
    command = [str(find_program("pg_dump")), "-s", "-d", url]
    dumped = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return "\n".join(line for line in dumped.splitlines() if not line.startswith(("--", "\\")) and line)


async def list_databases(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "select datname from pg_database where datname = current_database() or datname ~ '^agent_' order by 1"
        )
        return [row[0] for row in rows]
    finally:
        await connection.close()


async def count_rows(url: str) -> dict[str, int]:
    """How many rows each table has."""
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch(
            "select format('%I.%I', schemaname, tablename) from pg_tables"
            " where schemaname not in ('pg_catalog', 'information_schema')"
        )

        return {name: await connection.fetchval(f"select count(*) from {name}") for (name,) in tables}
    finally:
        await connection.close()


def at(url: str, database: str) -> str:
    base, _, query = url.partition("?")
    return f"{base.rsplit('/', 1)[0]}/{database}?{query}"


async def wait_for_revision(http: httpx2.AsyncClient, deployment: str) -> Any:
    async def look() -> Any:
        found = (await http.get(f"/v2/deployments/{deployment}/revisions")).json()["resources"][0]
        return found if found["status"] == "DEPLOYED" or "FAILED" in found["status"] else None

    return await eventually(look)


async def deploy(http: httpx2.AsyncClient, repository: Repository) -> str:
    install = (await http.get("/v1/integrations/git_hosting/install")).json()
    response = await http.post(
        "/v2/deployments",
        json={
            "name": "kept",
            "source": "git_hosting",
            "source_config": {
                "integration_id": install[0]["id"],
                "repo_url": str(repository.folder),
                "deployment_type": "dev",
                "build_on_push": False,
            },
            "source_revision_config": {"repo_ref": "main", "graph_config_path": "langgraph.json"},
            "secrets": [{"name": "MY_SECRET", "value": "s3cret"}],
        },
    )

    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def fill(http: httpx2.AsyncClient, url: str) -> tuple[str, str]:
    """Use the agent and the hosted API; return the ids of a thread and of a trace."""
    async with get_client(url=url, api_key=KEY) as agent:
        thread = (await agent.threads.create(metadata={"kept": "yes"}))["thread_id"]
        for _ in range(2):
            await agent.runs.wait(thread, "agent", input={})

        await agent.runs.wait(None, "agent", input={})
        await agent.crons.create_for_thread(thread, "agent", schedule="0 0 1 1 *", input={})

        for key in ("tea", "cat"):
            await agent.store.put_item(["memories"], key, {"text": key})

    run = str(uuid4())
    written = [
        await http.post("/runs", json={**RUN, "id": run}),
        await http.post("/feedback", json={"run_id": run, "key": "correct", "score": 1}),
        dataset := await http.post("/datasets", json={"name": "questions"}),
        await http.post("/examples", json={"dataset_id": dataset.json()["id"], "inputs": {"q": 1}}),
    ]

    assert all(response.is_success for response in written), [response.text for response in written]

    async def has_traces() -> bool:
        response = await http.get("/sessions", params={"name": "kept", "include_stats": "true"})
        return bool(response.json()) and response.json()[0]["run_count"] >= 3

    await eventually(has_traces)
    return thread, run


async def hold_run(agent: Any, gate: Path) -> tuple[str, str]:
    """Start a run that has passed its first node, and waits for a file in its second one."""
    thread = (await agent.threads.create())["thread_id"]
    run = await agent.runs.create(thread, "agent", input={"until": str(gate)})

    async def is_held() -> bool:
        state = await agent.threads.get_state(thread)
        return state["values"].get("seen") == 1 and state["next"] == ["hold"]

    await eventually(is_held)
    return thread, run["run_id"]


@asynccontextmanager
async def load(original: Original) -> AsyncIterator[None]:
    """Post traces and run the agent until the end of the block; acknowledged traces are recorded."""
    stopping = asyncio.Event()
    used = asyncio.Event()

    async def trace(http: httpx2.AsyncClient) -> None:
        while not stopping.is_set():
            one = str(uuid4())
            body = {**RUN, "id": one, "trace_id": one, "dotted_order": f"20260101T000000000000Z{one}"}
            if (await http.post("/runs/batch", json={"post": [body], "patch": []})).is_success:
                original.acknowledged.append(one)

    async def use(agent: Any) -> None:
        # On one thread, so that the number of rows of a table only grows.
        thread = (await agent.threads.create())["thread_id"]
        while not stopping.is_set():
            await agent.runs.wait(thread, "agent", input={})
            used.set()

    async with (
        httpx2.AsyncClient(base_url=original.url, headers=HEADERS, timeout=300) as http,
        get_client(url=original.agent, api_key=KEY) as agent,
    ):
        working = [asyncio.create_task(work) for work in (trace(http), trace(http), use(agent))]
        await eventually(lambda: asyncio.sleep(0, len(original.acknowledged) >= 200 and used.is_set()))
        try:
            yield
            assert not any(task.done() for task in working), "the load went on all the time"
        finally:
            stopping.set()
            await asyncio.gather(*working)


async def prepare(home: Path, server: ServerProcess, folder: Path) -> Original:
    repository = Repository(folder / "repository")
    embed = (PROJECTS / "store" / "embed.py").read_text()
    repository.commit({"langgraph.json": CONFIG, "requirements.txt": "", "agent.py": AGENT, "embed.py": embed})

    async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS, timeout=300) as http:
        deployment = await deploy(http, repository)
        revision = await wait_for_revision(http, deployment)
        assert revision["status"] == "DEPLOYED", revision
        url = (await http.get(f"/v2/deployments/{deployment}")).json()["source_config"]["custom_url"]
        thread, run = await fill(http, url)

    gate = folder / "gate"
    async with get_client(url=url, api_key=KEY) as agent:
        held = await hold_run(agent, gate)

    return Original(server, home, server.url, deployment, url, thread, run, *held, gate)


async def counts_under_load(original: Original, source: str, kind: str, file: Path) -> tuple[list[str], Any]:
    """Take a backup under load; return the traces acknowledged before, and the counts of tables at rest meanwhile."""
    async with load(original):
        before = list(original.acknowledged)
        names = await list_databases(source)
        counts = {name: await count_rows(at(source, name)) for name in names}
        arguments = ["backup", "create", "--home", str(original.home), "--to", str(file)]
        more = ["--dumps"] if kind == "dumps" else []
        url = source if kind == "server" else ""

        await asyncio.to_thread(portside, *arguments, *more, DATABASE_URL=url)
        after = {name: await count_rows(at(source, name)) for name in names}

    # A copy of the server empties unlogged tables, which hold what may be lost.
    kept = {
        name: {table: n for table, n in counts[name].items() if after[name][table] == n and "rate_windows" not in table}
        for name in names
    }

    return before, kept


@contextmanager
def own_server(folder: Path) -> Iterator[tuple[EmbeddedPostgres, str]]:
    """A Postgres server, and the URL of an empty database whose role may only create databases and roles."""
    server = EmbeddedPostgres(folder)
    server.acquire()
    try:
        asyncio.run(_make_role(server))
        yield server, server.url("own", "plain", "secret")
    finally:
        server.release()


async def _make_role(server: EmbeddedPostgres) -> None:
    admin = await asyncpg.connect(server.url("postgres"))
    await admin.execute("create role plain login createdb createrole password 'secret'")
    await admin.execute("create database own owner plain")
    await admin.close()

    # The role may not create it in the databases of agents.
    template = await asyncpg.connect(server.url("template1"))
    await template.execute("create extension vector")
    await template.close()


@pytest.mark.parametrize("kind", ["data", "dumps", "server"])
def test_platform_comes_back_with_everything(tmp_path: Path, kind: str) -> None:
    """`data` copies the embedded server, `dumps` dumps it, `server` dumps and restores servers of DATABASE_URL."""
    with contextlib.ExitStack() as stack:
        url = target = ""
        if kind == "server":
            (_, url), (_, target) = (stack.enter_context(own_server(tmp_path / name)) for name in ("pg1", "pg2"))

        home = tmp_path / "a home"
        file = tmp_path / "kept" / "now.backup"
        new = tmp_path / "new home"

        with platform_server(home, DATABASE_URL=url) as server:
            original = asyncio.run(prepare(home, server, tmp_path))
            source = url or EmbeddedPostgres(home).url("portside")
            before, counts = asyncio.run(counts_under_load(original, source, kind, file))
            schemas = {name: dump_schema(at(source, name)) for name in counts}

        portside("backup", "restore", str(file), "--home", str(new), DATABASE_URL=target)
        original.gate.touch()
        port = free_port()
        command = ["up", "--no-example", "--home", str(new), "--port", str(port)]
        restored = ServerProcess(command, f"http://127.0.0.1:{port}", {"DATABASE_URL": target}, tmp_path / "up.log")

        with restored_counts(new, target) as admin:
            compare(asyncio.run(_all_counts(admin)), counts)
            assert {name: dump_schema(at(admin, name)) for name in counts} == schemas
            assert asyncio.run(_traces(admin, before)) == len(before) >= 200

        restored.start()
        try:
            asyncio.run(_reads_back(original, restored, before))
        finally:
            restored.stop()


@contextmanager
def restored_counts(home: Path, target: str) -> Iterator[str]:
    """The URL of a superuser on the restored server, before the platform starts on it."""
    if target:
        yield target
        return

    server = EmbeddedPostgres(home)
    yield server.acquire()
    server.release()


async def _all_counts(url: str) -> dict[str, dict[str, int]]:
    return {name: await count_rows(at(url, name)) for name in await list_databases(url)}


async def _traces(url: str, ids: list[str]) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("select count(*) from traces where trace_id = any($1::uuid[])", ids))
    finally:
        await connection.close()


def compare(restored: dict[str, dict[str, int]], kept: dict[str, dict[str, int]]) -> None:
    """Compare the tables that were at rest during the backup, which all kinds of data have."""
    filled = set[str]()
    assert restored.keys() == kept.keys()

    for name, counts in kept.items():
        filled |= {table for table, n in counts.items() if n}
        # The restore applies what a start would apply.
        assert counts == {table: n for table, n in restored[name].items() if table in counts}

    assert filled >= {
        "public.feedback",
        "public.examples",
        "public.deployments",
        "public.revisions",
        "portside.crons",
        "portside.store_items",
        "portside.store_vectors",
    }


async def _reads_back(original: Original, server: ServerProcess, before: list[str]) -> None:
    """Read everything again through the real servers."""
    async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS, timeout=300) as http:

        async def serves() -> Any:
            # Until the listener has looked, its earlier status is shown.
            found = (await http.get(f"/v2/deployments/{original.deployment}")).json()
            url = found["source_config"]["custom_url"]
            with contextlib.suppress(httpx2.TransportError):
                answers = (await http.get(f"{url}/ok")).status_code == 200
                return url if answers and found["status"] == "READY" and found["status_message"] is None else None

        url = await eventually(serves, 300)
        found = (await http.get(f"/v2/deployments/{original.deployment}")).json()
        assert found["secrets"] == [{"name": "MY_SECRET", "value": "s3cret"}]
        run = (await http.get(f"/runs/{original.run}")).json()
        assert (run["total_tokens"], run["first_token_time"][:19]) == (7, "2026-01-01T00:00:01")
        assert (await http.get(f"/runs/{before[-1]}")).status_code == 200
        assert await _count_billed_traces(http) >= len(before)

        examples = (await http.get("/datasets", params={"name": "questions"})).json()
        assert [dataset["example_count"] for dataset in examples] == [1]

    async with get_client(url=url, api_key=KEY) as agent:
        assert (await agent.threads.get(original.thread))["metadata"]["kept"] == "yes"
        assert (await agent.threads.get_state(original.thread))["values"]["seen"] == 2
        assert len(await agent.threads.get_history(original.thread)) == 8
        assert [cron["schedule"] for cron in await agent.crons.search(thread_id=original.thread)] == ["0 0 1 1 *"]
        hits = (await agent.store.search_items(["memories"], query="tea"))["items"]
        assert (hits[0]["key"], round(hits[0]["score"], 3)) == ("tea", 1.0)

        # It goes on from its checkpoint: the first node does not run again.
        ended = await agent.runs.join(original.held_thread, original.held_run)
        assert ended["seen"] == 1
        assert (await agent.runs.get(original.held_thread, original.held_run))["status"] == "success"
        assert (await agent.runs.wait(original.thread, "agent", input={}))["seen"] == 3


async def _count_billed_traces(http: httpx2.AsyncClient) -> int:
    """Return how many traces are counted for billing."""
    workspace = (await http.get("/auth")).json()["tenant_id"]
    query = {
        "start_time": "2020-01-01T00:00:00Z",
        "end_time": "2040-01-01T00:00:00Z",
        "workspace_ids": [workspace],
        "group_by": "project",
    }

    response = await http.get(USAGE, params=query)
    assert response.status_code == 200, response.text
    return sum(record["traces"] for record in response.json()["usage"])
