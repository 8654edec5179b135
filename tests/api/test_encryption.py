"""Encryption of stored data, through the stock clients.

A dump of the database contains nothing that a client sent, and clients notice no difference.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from uuid import UUID, uuid4

import asyncpg
import httpx2
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import InternalServerError, UnprocessableEntityError

from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

MARKER = "swordfish"
QUESTION = {"word": MARKER, "messages": [{"role": "user", "content": MARKER}], "tenant": "acme"}
HANDLERS = pytest.mark.needs("langgraph-sdk", "0.2.14")
AES = {"GRAPH_AES_KEY": "k" * 32, "GRAPH_AES_JSON_KEYS": "*"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("handlers", marks=HANDLERS),
        pytest.param("handlers in an executor", marks=HANDLERS),
        "aes",
    ],
)
def server(
    request: pytest.FixtureRequest, module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    executors = {"EXECUTORS": "1", "EXECUTOR_START_SECS": "600"}
    project, settings = {
        "handlers": ("encryption", {}),
        "handlers in an executor": ("encryption", executors),
        "aes": ("encryption_aes", AES),
    }[request.param]

    folder = tmp_path_factory.mktemp("agent")
    with agent_server(module_database, folder, project=project, **settings) as running:
        yield running


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=server.url, api_key="") as opened:
        yield opened


def context(**metadata: object) -> dict[str, str]:
    return {"X-Encryption-Context": base64.b64encode(json.dumps(metadata).encode()).decode()}


async def dump(url: str) -> str:
    """Write down every row of every table, bytes as text where they are some."""
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch(
            "select format('%I.%I', schemaname, tablename) as name from pg_tables "
            "where schemaname not in ('pg_catalog', 'information_schema')"
        )

        rows = [row for table in tables for row in await connection.fetch(f"select * from {table['name']}")]
    finally:
        await connection.close()

    return "\n".join(
        value.decode("latin-1") if isinstance(value, bytes) else str(value) for row in rows for value in row.values()
    )


async def test_database_dump_contains_no_clear_text(client, server):
    labels = {"title": MARKER, "tenant": "acme"}
    thread = await client.threads.create(metadata=labels)
    events = [
        part
        async for part in client.runs.stream(
            thread["thread_id"],
            "agent",
            input=QUESTION,
            stream_mode=["values", "custom", "messages-tuple"],
            stream_resumable=True,
            stream_subgraphs=True,
            context={"secret": MARKER},
            metadata=labels,
        )
    ]

    assert not [part for part in events if part.event == "error"]
    state = await client.threads.get_state(thread["thread_id"])
    assert state["values"]["notes"] == [MARKER] * 3 or MARKER in state["values"]["notes"]
    assert (await client.threads.get(thread["thread_id"]))["metadata"]["title"] == MARKER
    [run] = await client.runs.list(thread["thread_id"])
    assert run["kwargs"]["input"]["word"] == run["metadata"]["title"] == MARKER
    assert run["kwargs"]["context"]["secret"] == MARKER

    waiting = await client.threads.create()
    await client.runs.wait(waiting["thread_id"], "asker", input=QUESTION)
    assert (await client.threads.get(waiting["thread_id"]))["interrupts"]
    answered = await client.runs.wait(waiting["thread_id"], "asker", command={"resume": MARKER})
    assert MARKER in answered["notes"]
    await client.threads.update_state(waiting["thread_id"], {"word": MARKER + "2"})
    assert (await client.threads.get_state(waiting["thread_id"]))["values"]["word"] == MARKER + "2"

    copy = await client.threads.copy(waiting["thread_id"])
    assert (await client.threads.get_state(copy["thread_id"]))["values"]["word"] == MARKER + "2"

    failed = await client.threads.create()
    with pytest.raises(Exception, match=MARKER):
        await client.runs.wait(failed["thread_id"], "failing", input=QUESTION)

    assert MARKER in str(await client.threads.get(failed["thread_id"]))

    assistant = await client.assistants.create("agent", context={"secret": MARKER}, metadata=labels)
    changed = await client.assistants.update(assistant["assistant_id"], context={"secret": MARKER + "3"})
    assert changed["context"]["secret"] == changed["config"]["configurable"]["secret"] == MARKER + "3"
    await client.runs.wait(None, assistant["assistant_id"], input=QUESTION)
    await client.runs.create(thread["thread_id"], "agent", input=QUESTION, after_seconds=3600)
    await client.runs.create_batch([{"assistant_id": "agent", "input": QUESTION, "after_seconds": 3600}])

    cron = await client.crons.create("agent", schedule="0 0 1 1 *", input=QUESTION, metadata=labels)
    assert cron["payload"]["input"]["word"] == cron["metadata"]["title"] == MARKER
    await client.store.put_item(["notes"], "kept", {"text": MARKER, "tenant": "acme"}, index=False)
    item = await client.store.get_item(["notes"], "kept")
    assert item["value"] == {"text": MARKER, "tenant": "acme"}

    threads = await client.threads.search(ids=[thread["thread_id"]], extract={"word": "values.messages[0].content"})
    assert threads[0]["extracted"] == {"word": MARKER}
    history = await client.threads.get_history(thread["thread_id"], limit=20)
    assert len(history) > 2
    assert history[0]["metadata"]["title"] == MARKER

    written = await dump(server.environment["DATABASE_URI"])
    assert thread["thread_id"] in written
    assert [line[:300] for line in written.splitlines() if MARKER in line] == []


async def test_search_for_encrypted_keys_is_refused(client):
    with pytest.raises(UnprocessableEntityError, match=r"title.*is encrypted"):
        await client.threads.search(metadata={"title": MARKER})

    with pytest.raises(UnprocessableEntityError, match=r"text.*is encrypted"):
        await client.store.search_items(["notes"], filter={"text": MARKER})

    assert await client.threads.search(metadata={"graph_id": "nothing"}) == []


async def test_a_client_cannot_pass_off_a_value_as_encrypted(client):
    for forged in ({"__sealed__": {"aes": "AAAA", "of": "x"}}, {"__sealed__": 1}, [{"__sealed__": {"plain": 1}}]):
        thread = await client.threads.create(metadata={"forged": forged, "owner": forged})
        assert (await client.threads.get(thread["thread_id"]))["metadata"] == {"forged": forged, "owner": forged}


async def test_a_context_is_an_object_of_bounded_size(server):
    async with httpx2.AsyncClient(base_url=server.url) as http:
        for bad in ("no base64!", base64.b64encode(b"[1]").decode(), "A" * 5000):
            response = await http.post("/threads", json={}, headers={"X-Encryption-Context": bad})
            assert response.status_code == 422
            assert "X-Encryption-Context" in response.text


ONLY_HANDLERS = pytest.mark.parametrize("server", [pytest.param("handlers", marks=HANDLERS)], indirect=True)


async def fetch_rows(server, statement, *values):
    connection = await asyncpg.connect(server.environment["DATABASE_URI"])
    try:
        return [str(dict(row)) for row in await connection.fetch(statement, *values)]
    finally:
        await connection.close()


@ONLY_HANDLERS
async def test_a_run_is_encrypted_in_the_context_of_its_request_and_replaced_when_it_is_read(client, server):
    headers = context(key="old")
    thread = await client.threads.create(metadata={"title": MARKER}, headers=headers)
    thread_id = UUID(thread["thread_id"])

    reported = [
        part
        async for part in client.runs.stream(
            thread["thread_id"], "asker", input=QUESTION, stream_resumable=True, headers=headers
        )
    ]

    events = "select encode(body, 'escape') as body from portside.stream_chunks where thread_id = $1"
    chunks = await fetch_rows(server, events, thread_id)
    assert reported
    assert chunks
    assert all("handler" in chunk and "old:" in chunk for chunk in chunks)
    checkpoints = "select encode(body, 'escape') as body from portside.checkpoints where thread_id = $1"
    in_context = await fetch_rows(server, checkpoints, thread["thread_id"])

    # The last one was read already, to see what the run stopped at.
    assert all("handler" in row for row in in_context)
    assert any("old:" in row for row in in_context)
    assert "'from': 'handler'" in str(await client.runs.list(thread["thread_id"]))

    async def is_replaced():
        assert (await client.threads.get(thread["thread_id"]))["metadata"]["title"] == MARKER
        assert (await client.threads.get_state(thread["thread_id"]))["values"]["word"] == MARKER
        stored = await fetch_rows(
            server, 'select metadata, "values", interrupts from portside.threads where thread_id = $1', thread_id
        )
        latest = await fetch_rows(server, checkpoints + " order by checkpoint_id desc limit 1", thread["thread_id"])

        return "enc:" not in str(stored) and "new:" in str(stored) and "old:" not in str(latest)

    assert await eventually(is_replaced)


@ONLY_HANDLERS
async def test_failed_encryption_stores_nothing(client, server):
    thread_id = uuid4()
    with pytest.raises(InternalServerError, match=r"encrypt\.json raised RuntimeError"):
        await client.threads.create(thread_id=str(thread_id), metadata={"title": MARKER}, headers=context(fail=True))

    assert await fetch_rows(server, "select from portside.threads where thread_id = $1", thread_id) == []


@ONLY_HANDLERS
async def test_cron_fires_late_if_its_run_could_not_be_encrypted_in_time(client, server):
    cron_id = UUID((await client.crons.create("agent", schedule="0 0 1 1 *", input=QUESTION))["cron_id"])
    change = "update portside.crons set payload = payload || $2::jsonb, next_run_date = now(), claimed_until = null"
    look = "select last_run_id is not null as has_run, claimed_until is not null as is_claimed, skipped_count"

    async def state() -> str:
        # It takes seconds, and each look is a connection to the database.
        await asyncio.sleep(0.3)
        return (await fetch_rows(server, f"{look} from portside.crons where cron_id = $1", cron_id))[0]

    async def is_claimed() -> bool:
        return "'is_claimed': True" in await state()

    async def has_run() -> bool:
        return "'has_run': True" in await state()

    failing_context = json.dumps({"encryption_context": {"fail": True}})
    await fetch_rows(server, f"{change} where cron_id = $1", cron_id, failing_context)
    assert await eventually(is_claimed)
    await fetch_rows(server, f"{change} where cron_id = $1", cron_id, json.dumps({"encryption_context": {}}))
    assert await eventually(has_run)
    assert "'skipped_count': 0" in await state()


@pytest.mark.parametrize("server", ["aes"], indirect=True)
async def test_context_is_refused_without_handlers(server):
    async with httpx2.AsyncClient(base_url=server.url) as http:
        response = await http.post("/threads", json={}, headers=context(tenant="acme"))

    assert response.status_code == 422
    assert "X-Encryption-Context" in response.text
