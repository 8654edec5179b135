"""The memory budget of responses: pages that end early, refusals that say how much fits, and real servers.

A response to a read has a budget, unless it is a single object, and all large responses share one. The budgets are
small here, and the data is many times larger: a server that reads it whole takes several times the bound on its
memory.
"""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx2
import pytest
import zstandard

from tests.servers import KEY, ServerProcess, agent_server, free_port

RUNS = 40
RUN_BYTES = 750_000
ANSWER_BYTES = 2_000_000
INGESTED_BYTES = 7_000_000
MAX_INGEST_BYTES = 10_000_000
BUDGETS = {
    "ANSWER_MAX_BYTES": str(ANSWER_BYTES),
    "LARGE_READS_MAX_BYTES": "6000000",
    "INGEST_MAX_BODY_BYTES": str(MAX_INGEST_BYTES),
    "INGEST_MAX_RUN_BYTES": str(MAX_INGEST_BYTES),
}
# All of it is 30 MB, four times that while it is answered, and three ask at once. What a server takes for answers of
# the budget is less than half of this bound, but does not get less with the budget.
MOST_MORE_MEMORY = 130_000_000
CALLERS = 3
# What a body takes while it is stored is a fourth of that.
SENDERS = 6
FILL_RUNS = """
    insert into runs (workspace_id, id, trace_id, parent_run_id, dotted_order, project_id, name, run_type, start_time,
                      inputs, patched, patch_order, is_awaited)
    select r.workspace_id, gen_random_uuid(), r.trace_id, r.id, r.dotted_order || '.' || n::text || gen_random_uuid(),
           r.project_id, 'large ' || n, 'chain', r.start_time + n * interval '1 second', $2::text, 0, 0, false
    from runs r, generate_series(1, $1::int) n
"""
FILL_EXAMPLES = """
    insert into examples (workspace_id, dataset_id, since, until, id, created_at, position, inputs, metadata,
                          attachments)
    select workspace_id, id, now(), 'infinity', gen_random_uuid(), now(), n, $2::text::json, '{}', '{}'
    from datasets, generate_series(1, $1::int) n
"""


class Server:
    def __init__(self, process: ServerProcess, client: httpx2.AsyncClient) -> None:
        assert process.process is not None
        self.client = client
        self.url = process.url
        self._status = Path(f"/proc/{process.process.pid}")

    async def memory_over(
        self, asks: list[Callable[[], Awaitable[httpx2.Response]]]
    ) -> tuple[int, list[httpx2.Response]]:
        """Ask all at once; return by how much memory grew at its most, and the answers."""
        (self._status / "clear_refs").write_text("5")
        before = self._kilobytes("VmRSS")
        responses = await asyncio.gather(*map(response_to, asks))
        return (self._kilobytes("VmHWM") - before) * 1024, responses

    def _kilobytes(self, name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", (self._status / "status").read_text())
        assert found is not None
        return int(found[1])


async def response_to(ask: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """Ask again while others hold the memory, which the server says after some seconds on a busy machine."""
    while (response := await ask()).status_code == 503:
        assert response.headers["retry-after"]
    return response


def build_json(size: int) -> str:
    return '{"a": "' + "x" * (size - 9) + '"}'


@pytest.fixture(scope="module")
def process(platform_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("home")
    port = free_port()
    settings = {
        "DATABASE_URL": platform_database,
        "PORTSIDE_API_KEY": KEY,
        "PORTSIDE_OWN_LISTENER": "false",
        "RATE_LIMITS": "false",
        **BUDGETS,
    }

    arguments = ["up", "--home", str(home), "--port", str(port), "--no-example"]
    server = ServerProcess(arguments, f"http://127.0.0.1:{port}", settings, home / "up.log", is_preloaded=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def large_rows(process: ServerProcess, platform_database: str) -> dict[str, Any]:
    """A trace of many large runs, and a dataset of as many large examples."""

    async def fill() -> dict[str, Any]:
        headers = {"X-Api-Key": KEY}
        async with httpx2.AsyncClient(base_url=process.url, headers=headers, timeout=300) as client:
            root = str(uuid4())
            moment = "2026-01-01T00:00:00"
            run = {
                "id": root,
                "trace_id": root,
                "dotted_order": f"20260101T000000000000Z{root}",
                "name": "root",
                "run_type": "chain",
                "session_name": "large",
                "start_time": moment,
                "inputs": {},
            }

            assert (await client.post("/runs", json=run)).is_success
            dataset = (await client.post("/datasets", json={"name": "large"})).json()["id"]
            connection = await asyncpg.connect(platform_database)
            await connection.execute(FILL_RUNS, RUNS, build_json(RUN_BYTES))
            await connection.execute(FILL_EXAMPLES, RUNS, build_json(RUN_BYTES))
            await connection.close()

            project = (await client.get("/sessions", params={"name": "large"})).json()[0]["id"]
            token = (await client.put(f"/runs/{root}/share", json={})).json()["share_token"]
            return {"root": root, "project": project, "token": token, "dataset": dataset}

    return asyncio.run(fill())


@pytest.fixture
async def platform(process: ServerProcess) -> AsyncIterator[Server]:
    async with httpx2.AsyncClient(base_url=process.url, headers={"X-Api-Key": KEY}, timeout=300) as client:
        yield Server(process, client)


async def walk(platform: Server, path: str, body: dict[str, Any]) -> list[list[dict[str, Any]]]:
    pages: list[list[dict[str, Any]]] = []
    cursor = None
    while cursor is not None or not pages:
        response = await platform.client.post(path, json={**body, **({"cursor": cursor} if cursor else {})})
        assert response.status_code == 200, response.text[:300]
        assert len(response.content) <= ANSWER_BYTES + 100_000
        found = response.json()

        pages.append(found.get("runs") or found["items"])
        cursor = found["cursors"]["next"] if "cursors" in found else found["next_cursor"]

    return pages


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_of_large_runs_end_early_and_cursors_skip_and_double_nothing(
    platform: Server, large_rows: dict[str, Any], order: str
) -> None:
    pages = await walk(platform, "/runs/query", {"session": [large_rows["project"]], "order": order})
    names = [run["name"] for page in pages for run in page]
    expected = ["root", *(f"large {number}" for number in range(1, RUNS + 1))]
    assert names == (expected if order == "asc" else expected[::-1])
    assert len(pages) > RUNS * RUN_BYTES // ANSWER_BYTES


async def test_a_page_before_ends_early_on_the_side_away_from_its_cursor(
    platform: Server, large_rows: dict[str, Any]
) -> None:
    body = {"session": [large_rows["project"]], "select": ["inputs"]}
    small = {"session": [large_rows["project"]], "select": ["id"]}
    everything = (await platform.client.post("/runs/query", json={**small, "limit": 25})).json()
    after = (await platform.client.post("/runs/query", json={**small, "cursor": everything["cursors"]["next"]})).json()
    before = (await platform.client.post("/runs/query", json={**body, "cursor": after["cursors"]["prev"]})).json()
    ids = [run["id"] for run in everything["runs"]]
    shown = [run["id"] for run in before["runs"]]
    assert 1 <= len(shown) < len(ids) and shown == ids[-len(shown) :]


async def test_what_is_not_shown_does_not_count(platform: Server, large_rows: dict[str, Any]) -> None:
    body = {"session": [large_rows["project"]], "select": ["id"]}
    assert [len(page) for page in await walk(platform, "/runs/query", body)] == [RUNS + 1]


async def test_pages_of_the_newer_form_end_early_as_well(platform: Server, large_rows: dict[str, Any]) -> None:
    body = {
        "project_ids": [large_rows["project"]],
        "selects": ["ID", "INPUTS"],
        "min_start_time": "2025-01-01T00:00:00Z",
        "page_size": 1000,
    }

    pages = await walk(platform, "/v2/runs/query", body)
    ids = [run["id"] for page in pages for run in page]
    assert len(ids) == len(set(ids)) == RUNS + 1


async def test_memory_stays_small_for_queries_of_runs(platform: Server, large_rows: dict[str, Any]) -> None:
    body = {"session": [large_rows["project"]], "limit": 100}
    client = platform.client
    shared = f"/public/{large_rows['token']}/runs/query"
    for ask in (
        partial(client.post, "/runs/query", json=body),
        partial(client.post, shared, json={"limit": 100}, headers={"X-Api-Key": ""}),
    ):
        grown, responses = await platform.memory_over([ask] * CALLERS)
        assert [response.status_code for response in responses] == [200] * CALLERS
        assert grown < MOST_MORE_MEMORY


def build_compressed_body(run: dict[str, Any], **fields: int) -> bytes:
    """The body of one run with fields of these sizes, zstd-compressed by less than the ratio that is refused."""
    pieces = {
        name: [secrets.token_hex(500) + "x" * 19_000 for _ in range(size // 20_000)] for name, size in fields.items()
    }
    return zstandard.compress(json.dumps({**run, **{name: {"a": found} for name, found in pieces.items()}}).encode())


def large_run() -> dict[str, Any]:
    run_id = str(uuid4())
    order = f"20260101T000000000000Z{run_id}"
    return {
        "id": run_id,
        "trace_id": run_id,
        "dotted_order": order,
        "name": "ingested",
        "run_type": "chain",
        "session_name": "ingested",
        "start_time": "2026-01-01T00:00:00",
    }


ENCODED = {"Content-Encoding": "zstd", "Content-Type": "application/json"}


async def test_ingest_of_large_bodies_keeps_memory_small(platform: Server) -> None:
    bodies = [build_compressed_body(large_run(), inputs=INGESTED_BYTES) for _ in range(SENDERS)]
    post = platform.client.post
    grown, responses = await platform.memory_over(
        [partial(post, "/runs", content=body, headers=ENCODED) for body in bodies]
    )
    assert grown < MOST_MORE_MEMORY
    assert [response.status_code for response in responses] == [202] * SENDERS


async def test_bodies_that_decompress_beyond_the_limit_are_refused_by_name(platform: Server) -> None:
    body = build_compressed_body(large_run(), inputs=MAX_INGEST_BYTES + 1_000_000)
    response = await platform.client.post("/runs", content=body, headers=ENCODED)
    assert response.status_code == 413
    assert str(MAX_INGEST_BYTES) in response.json()["detail"] and "INGEST_MAX_BODY_BYTES" in response.json()["detail"]


async def test_runs_do_not_grow_beyond_the_limit_by_several_requests(platform: Server) -> None:
    run = large_run()
    response = await platform.client.post(
        "/runs", content=build_compressed_body(run, inputs=INGESTED_BYTES), headers=ENCODED
    )
    assert response.status_code == 202
    path = f"/runs/{run['id']}"
    response = await platform.client.patch(
        path, content=build_compressed_body({}, outputs=INGESTED_BYTES), headers=ENCODED
    )
    assert response.status_code == 413
    assert response.json()["detail"].startswith(
        f"With this request a run would hold more than {MAX_INGEST_BYTES} bytes"
    )

    kept = await platform.client.get(path)
    assert kept.status_code == 200 and kept.json()["outputs"] is None
    response = await platform.client.patch(
        path, content=build_compressed_body({}, outputs=MAX_INGEST_BYTES // 6), headers=ENCODED
    )
    assert response.status_code == 202


async def test_an_answer_without_cursor_says_how_many_fit(platform: Server, large_rows: dict[str, Any]) -> None:
    client = platform.client
    path = f"/examples?dataset={large_rows['dataset']}"
    grown, responses = await platform.memory_over([partial(client.get, f"{path}&limit=100")] * CALLERS)
    assert [response.status_code for response in responses] == [413] * CALLERS
    assert grown < MOST_MORE_MEMORY
    said = re.search(r"smaller `limit`: (\d+) objects fit", responses[0].json()["detail"])
    assert said is not None

    fitting = await client.get(f"{path}&limit={said[1]}")
    assert fitting.status_code == 200 and len(fitting.json()) == int(said[1]) == ANSWER_BYTES // RUN_BYTES + 1


async def test_a_file_of_large_examples_is_written_in_pieces(platform: Server, large_rows: dict[str, Any]) -> None:
    path = f"/datasets/{large_rows['dataset']}/jsonl"

    grown, (response,) = await platform.memory_over([partial(platform.client.get, path)])
    assert len(response.content.splitlines()) == RUNS
    assert grown < RUNS * RUN_BYTES


async def test_one_object_above_the_budget_is_read_alone(
    platform: Server, large_rows: dict[str, Any], platform_database: str
) -> None:
    connection = await asyncpg.connect(platform_database)
    await connection.execute(
        "update runs set outputs = $1 where id = $2", build_json(3 * ANSWER_BYTES), large_rows["root"]
    )
    try:
        response = await platform.client.get(f"/runs/{large_rows['root']}")
        assert response.status_code == 200 and len(response.json()["outputs"]["a"]) == 3 * ANSWER_BYTES - 9
        body = {"session": [large_rows["project"]], "order": "asc"}
        page = (await platform.client.post("/runs/query", json=body)).json()
        assert [run["name"] for run in page["runs"]] == ["root"] and page["cursors"]["next"]
    finally:
        await connection.execute("update runs set outputs = null where id = $1", large_rows["root"])
        await connection.close()


@pytest.fixture(scope="module")
def agent(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """An agent server with many large threads and items."""

    async def fill() -> None:
        connection = await asyncpg.connect(module_database, server_settings={"search_path": "portside,public"})
        value = build_json(RUN_BYTES)
        await connection.execute(
            'insert into threads (thread_id, metadata, "values") '
            "select gen_random_uuid(), '{}', $2::text::jsonb from generate_series(1, $1::int)",
            RUNS,
            value,
        )

        await connection.execute(
            "insert into store_items (namespace, key, value) "
            "select array['large'], n::text, $2::text::jsonb from generate_series(1, $1::int) n",
            RUNS,
            value,
        )

        await connection.close()

    with agent_server(module_database, tmp_path_factory.mktemp("agent"), **BUDGETS) as server:
        asyncio.run(fill())
        yield server


async def test_searches_of_an_agent_say_how_many_fit_and_keep_memory_small(agent: ServerProcess) -> None:
    async with httpx2.AsyncClient(base_url=agent.url, timeout=300) as client:
        asked = Server(agent, client)
        for path, body in (
            ("/threads/search", {"limit": RUNS}),
            ("/store/items/search", {"namespace_prefix": ["large"], "limit": RUNS}),
        ):
            # Different questions, for those that are the same are asked once.
            calls = [partial(client.post, path, json={**body, "offset": number}) for number in range(CALLERS)]
            grown, responses = await asked.memory_over(calls)
            assert [response.status_code for response in responses] == [413] * CALLERS
            assert grown < MOST_MORE_MEMORY

            # A caller alone: how many fit depends on what others read at the same time.
            refusal = await client.post(path, json={**body, "offset": 0})
            said = re.search(r"(\d+) objects fit", refusal.json()["detail"])
            # A million bytes are free (kernel.large_reads), which is one object more.
            assert said is not None and 1 <= int(said[1]) <= ANSWER_BYTES // RUN_BYTES + 2
            assert (await client.post(path, json={**body, "limit": int(said[1])})).status_code == 200

        light = await client.post("/threads/search", json={"limit": RUNS, "select": ["thread_id"]})
        assert len(light.json()) == RUNS


async def test_a_state_above_the_budget_is_read_and_its_history_says_how_many_fit(
    agent: ServerProcess,
) -> None:
    async with httpx2.AsyncClient(base_url=agent.url, timeout=300) as client:
        thread = (await client.post("/threads", json={})).json()["thread_id"]
        message = {"role": "user", "content": "x" * ANSWER_BYTES}
        run = {"assistant_id": "echo", "input": {"messages": [message]}}
        assert (await client.post(f"/threads/{thread}/runs/wait", json=run)).is_success

        for path in ("state", "history?limit=1"):
            ask = partial(client.get, f"/threads/{thread}/{path}")
            responses = await asyncio.gather(*(response_to(ask) for _ in range(3)))
            assert [response.status_code for response in responses] == [200] * 3
            assert all(len(response.content) > ANSWER_BYTES for response in responses)

        refused = await client.get(f"/threads/{thread}/history?limit=10")
        assert (refused.status_code, "objects fit" in refused.json()["detail"]) == (413, True)

        # Or it were in the searches of another test.
        assert (await client.delete(f"/threads/{thread}")).is_success


async def test_threads_whose_lists_are_outside_of_their_rows_say_how_many_fit(agent: ServerProcess) -> None:
    threads = 8
    turns = 4
    size = ANSWER_BYTES // 64
    async with httpx2.AsyncClient(base_url=agent.url, timeout=300) as client:
        made = []
        for _ in range(threads):
            thread = (await client.post("/threads", json={"metadata": {"kind": "long"}})).json()["thread_id"]
            made.append(thread)

            for number in range(turns):
                message = {"role": "user", "content": f"{number}" * size}
                run = {"assistant_id": "echo", "input": {"messages": [message]}}
                assert (await client.post(f"/threads/{thread}/runs/wait", json=run)).is_success

        search = {"metadata": {"kind": "long"}, "limit": threads}
        refused = await client.post("/threads/search", json=search)
        said = re.search(r"(\d+) objects fit", refused.json()["detail"])
        assert refused.status_code == 413 and said is not None and 1 < int(said[1]) < threads
        fitting = await client.post("/threads/search", json={**search, "limit": int(said[1])})
        assert fitting.status_code == 200 and len(fitting.json()) == int(said[1])
        assert all(len(thread["values"]["messages"]) == 2 * turns for thread in fitting.json())

        # None of what a filter reads is in the response.
        wanted = {"values": {"messages": [{"content": "0" * size}]}, "limit": threads}
        light = await client.post("/threads/search", json={**wanted, "select": ["thread_id"]})

        assert sorted(thread["thread_id"] for thread in light.json()) == sorted(made)
        for thread in made:
            assert (await client.delete(f"/threads/{thread}")).is_success
