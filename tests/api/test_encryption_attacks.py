"""Attacks on encryption: forged and stolen envelopes from clients, and values that were moved in the database.

Client data is never decrypted. An encrypted value can be decrypted only in its own row, and an unreadable row fails
no other one.
"""

import base64
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx2
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import InternalServerError

from portside.agent.encryption.ciphers import AesKeys
from tests.conftest import eventually
from tests.projects.encryption.handlers import encrypt_text
from tests.servers import ServerProcess, agent_server

KEY = "k" * 32
SECRET = "swordfish"
SERVERS: dict[str, tuple[str, dict[str, str]]] = {
    "handlers": ("encryption", {}),
    "aes": ("encryption_aes", {"GRAPH_AES_KEY": KEY, "GRAPH_AES_JSON_KEYS": "*"}),
    "names": ("encryption_aes", {"GRAPH_AES_KEY": KEY, "GRAPH_AES_JSON_KEYS": "title,secret"}),
    "off": ("encryption_aes", {}),
}


@pytest.fixture(scope="module", params=list(SERVERS))
def server(
    request: pytest.FixtureRequest, module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    project, settings = SERVERS[request.param]
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project=project, **settings) as running:
        yield running


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=server.url, api_key="") as opened:
        yield opened


@pytest.fixture
async def database(server: ServerProcess) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(
        server.environment["DATABASE_URI"], server_settings={"search_path": "portside,public"}
    )

    try:
        yield connection
    finally:
        await connection.close()


def only(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", names, indirect=True)


def forgeries(stolen: list[Any]) -> list[Any]:
    """Objects that look like envelopes, some with ciphertext of this server in them."""
    before = base64.b64encode(AesKeys(KEY.encode()).encrypt(json.dumps(SECRET).encode(), b"title")).decode()
    return [
        {"__sealed__": 1},
        {"__sealed__": {"plain": 1}},
        {"__sealed__": {"__sealed__": None}, "__sealed__~": 1},
        {"__sealed__": {"aes": before, "of": "title"}},
        {"__sealed__": {"value": encrypt_text(SECRET, "new:"), "of": "thread.metadata"}},
        {"__sealed__": {"v": 2, "value": encrypt_text(SECRET, "new:"), "of": "thread.metadata"}},
        {"__unreadable__": "no"},
        *stolen,
    ]


def hidden(forged: Any) -> dict[str, Any]:
    """A document of a client with an envelope at many places."""
    return {
        "title": forged,
        "list": [forged, [forged]],
        "deep": {"a": {"b": [{"title": forged}]}},
        "graph_id_": forged,
        "langgraph_label": forged,
        "owner": forged,
        **(forged if len(forged) == 1 else {}),
    }


async def stolen_envelopes(client: LangGraphClient, database: asyncpg.Connection) -> list[Any]:
    thread = await client.threads.create(metadata={"title": SECRET})
    stored = await database.fetchval(
        "select metadata -> 'title' from threads where thread_id = $1", UUID(thread["thread_id"])
    )
    found = json.loads(stored)

    return [found] if isinstance(found, dict) else []


async def post(server: ServerProcess, path: str, body: Any) -> Any:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        response = await http.post(path, json=body, headers={"Accept": "application/json, text/event-stream"})

    assert response.status_code == 200, response.text
    return response.json()


async def assert_lists_answer(server: ServerProcess) -> None:
    for path in ("/assistants/search", "/threads/search", "/runs/crons/search"):
        assert await post(server, path, {"limit": 1000})

    assert (await post(server, "/store/items/search", {"namespace_prefix": [], "limit": 1000}))["items"]
    tools = await post(server, "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
    assert tools["result"]["tools"]


async def test_forged_envelopes_in_documents_are_data(client, server, database):
    for forged in forgeries(await stolen_envelopes(client, database)):
        for given in (forged, hidden(forged)):
            assistant = await client.assistants.create("agent", config={"configurable": given}, metadata=given)
            assistant_id = assistant["assistant_id"]
            other = await client.assistants.create("agent", context=given)
            assert assistant["context"] == other["config"]["configurable"] == given
            await client.assistants.update(assistant_id, context={"a": forged}, metadata={"b": forged})

            changed = await client.assistants.get(assistant_id)
            assert changed["config"]["configurable"] == changed["context"] == {"a": forged}
            assert changed["metadata"] == {**assistant["metadata"], "b": forged}
            assert assistant["metadata"].items() >= given.items()
            restored = await client.assistants.set_latest(assistant_id, 1)
            assert restored["context"] == given
            assert len(await client.assistants.get_versions(assistant_id)) == 2

            thread = await client.threads.create(metadata=given)
            assert (await client.threads.get(thread["thread_id"]))["metadata"] == given
            await client.threads.update(thread["thread_id"], metadata={"b": forged})
            assert (await client.threads.get(thread["thread_id"]))["metadata"] == {**given, "b": forged}

            cron = await client.crons.create("agent", schedule="0 0 1 1 *", input={"word": given}, metadata=given)
            assert cron["payload"]["input"]["word"] == given
            assert cron["metadata"] == given
            await client.store.put_item(["attack"], "one", given, index=False)
            assert (await client.store.get_item(["attack"], "one"))["value"] == given

    await assert_lists_answer(server)


async def test_forged_envelopes_in_runs_are_data(client, server, database):
    for forged in forgeries(await stolen_envelopes(client, database)):
        given = hidden(forged)
        thread = await client.threads.create(metadata=given)
        thread_id = thread["thread_id"]
        assistant = await client.assistants.create("agent", metadata=given, context=forged)

        values = await client.runs.wait(
            thread_id,
            assistant["assistant_id"],
            input={"word": given, "tenant": [forged]},
            metadata=given,
            config={"metadata": {"mine": forged}},
            context=given,
        )

        assert (values["word"], values["tenant"]) == (given, [forged])
        state = await client.threads.get_state(thread_id)
        assert (state["values"]["word"], state["values"]["tenant"]) == (given, [forged])
        [run] = await client.runs.list(thread_id)
        assert run["kwargs"]["config"]["metadata"]["mine"] == forged
        assert run["kwargs"]["input"]["word"] == given
        assert run["kwargs"]["config"]["configurable"].items() >= given.items()

        assert run["metadata"].items() >= given.items()
        await client.threads.update_state(thread_id, {"tenant": given})

        copy = await client.threads.copy(thread_id)
        for shown in (await client.threads.get(thread_id), await client.threads.get(copy["thread_id"])):
            assert shown["values"]["tenant"] == given
            assert shown["metadata"].items() >= given.items()

        [found] = await client.threads.search(
            ids=[thread_id],
            extract={"whole": "values.tenant", "envelope": "values.__sealed__", "deep": "metadata.deep.a.b[0].title"},
        )

        assert found["extracted"] == {"whole": given, "envelope": None, "deep": forged}


@only("aes", "names", "handlers")
async def test_error_messages_are_never_decrypted(client, database):
    [stolen] = await stolen_envelopes(client, database)
    thread = await client.threads.create()
    with pytest.raises(Exception, match="__sealed__") as failure:
        await client.runs.wait(thread["thread_id"], "failing", input={"word": json.dumps(stolen)})

    assert SECRET not in str(failure.value)
    assert SECRET not in str(await client.threads.get(thread["thread_id"]))


async def damage(database: asyncpg.Connection, statement: str, *values: Any) -> None:
    assert await database.execute(statement, *values) != "UPDATE 0"


@only("aes")
async def test_undecryptable_row_fails_alone(client, server, database):
    bad = '{"__sealed__": {"v": 2, "aes": "' + base64.b64encode(b"\x01" + b"x" * 60).decode() + '"}}'
    assistant = await client.assistants.create("agent", name="broken", context={"title": SECRET})
    thread = await client.threads.create(metadata={"title": SECRET})
    cron = await client.crons.create("agent", schedule="0 0 1 1 *", input={"word": SECRET})

    await client.store.put_item(["broken"], "one", {"title": SECRET}, index=False)
    await client.store.put_item(["broken"], "two", {"title": SECRET}, index=False)
    run = await client.runs.create(thread["thread_id"], "agent", input={"word": "x"}, after_seconds=3600)
    fine = await client.runs.create(thread["thread_id"], "agent", input={"word": "y"}, after_seconds=3600)

    await damage(
        database,
        "update assistants set context = jsonb_build_object('title', $2::jsonb) where assistant_id = $1",
        UUID(assistant["assistant_id"]),
        bad,
    )

    await damage(
        database,
        "update threads set metadata = jsonb_build_object('title', $2::jsonb) where thread_id = $1",
        UUID(thread["thread_id"]),
        bad,
    )

    await damage(
        database,
        "update crons set payload = payload || jsonb_build_object('input', $2::jsonb) where cron_id = $1",
        UUID(cron["cron_id"]),
        bad,
    )

    await damage(
        database,
        "update runs set kwargs = kwargs || jsonb_build_object('input', $2::jsonb) where run_id = $1",
        UUID(run["run_id"]),
        bad,
    )

    await damage(
        database,
        "update store_items set value = jsonb_build_object('title', $1::jsonb) where key = 'one' "
        "and namespace = '{broken}'",
        bad,
    )

    await assert_lists_answer(server)
    found = {one["assistant_id"]: one for one in await client.assistants.search(limit=1000)}
    assert "which this server does not have" in found[assistant["assistant_id"]]["context"]["__unreadable__"]
    assert found[assistant["assistant_id"]]["name"] == "broken"
    [shown] = await client.threads.search(ids=[thread["thread_id"]])
    assert shown["metadata"].keys() == {"__unreadable__"}
    runs = {one["run_id"]: one for one in await client.runs.list(thread["thread_id"])}
    assert runs[run["run_id"]]["kwargs"].keys() == {"__unreadable__"}

    assert runs[fine["run_id"]]["kwargs"]["input"] == {"word": "y"}
    crons = {one["cron_id"]: one for one in await client.crons.search(limit=1000)}
    assert crons[cron["cron_id"]]["payload"].keys() == {"__unreadable__"}
    items = (await client.store.search_items(["broken"]))["items"]
    assert {item["key"]: list(item["value"]) for item in items} == {"one": ["__unreadable__"], "two": ["title"]}

    for alone in (
        client.assistants.get(assistant["assistant_id"]),
        client.threads.get(thread["thread_id"]),
        client.runs.get(thread["thread_id"], run["run_id"]),
        client.store.get_item(["broken"], "one"),
    ):
        with pytest.raises(InternalServerError, match="which this server does not have"):
            await alone

    reports = [line for line in server.log.read_text().splitlines() if "a row cannot be decrypted" in line]
    assert any(assistant["assistant_id"] in line for line in reports)
    assert SECRET not in "".join(reports)
    await client.assistants.delete(assistant["assistant_id"])
    await client.threads.delete(thread["thread_id"])
    await client.crons.delete(cron["cron_id"])
    await client.store.delete_item(["broken"], "one")


@only("aes", "names")
async def test_undecryptable_cron_creates_no_run(client, database):
    bad = '{"__sealed__": {"v": 2, "aes": "' + base64.b64encode(b"\x01" + b"x" * 60).decode() + '"}}'
    thread = await client.threads.create()
    for field in ("input", "metadata"):
        cron = await client.crons.create_for_thread(
            thread["thread_id"], "agent", schedule="0 0 1 1 *", input={"word": SECRET}
        )

        await damage(
            database,
            "update crons set payload = payload || jsonb_build_object($3::text, $2::jsonb), "
            "next_run_date = now() where cron_id = $1",
            UUID(cron["cron_id"]),
            bad,
            field,
        )

        skipped = "select skipped_count from crons where cron_id = $1"

        async def is_skipped(cron=cron, skipped=skipped):
            return await database.fetchval(skipped, UUID(cron["cron_id"])) == 1

        assert await eventually(is_skipped)
        assert await client.runs.list(thread["thread_id"]) == []
        await client.crons.delete(cron["cron_id"])


@only("aes", "handlers")
async def test_checkpoints_moved_to_another_thread_do_not_decrypt(client, server, database):
    threads = [await client.threads.create(metadata={"title": word}) for word in (SECRET, "herring")]
    ids = [thread["thread_id"] for thread in threads]
    for thread_id, word in zip(ids, (SECRET, "herring"), strict=True):
        await client.runs.wait(thread_id, "asker", input={"word": word * 100})

    moves = {
        "checkpoints": "update checkpoints b set body = a.body from checkpoints a where a.thread_id = $1 "
        "and b.thread_id = $2 and (select max(checkpoint_id) from checkpoints where thread_id = $1) = a.checkpoint_id",
        "values": "update checkpoint_values b set data = a.data from checkpoint_values a where a.thread_id = $1 "
        "and b.thread_id = $2 and a.channel = b.channel and a.channel = 'word'",
        "writes": "update checkpoint_writes b set data = a.data from checkpoint_writes a where a.thread_id = $1 "
        "and b.thread_id = $2 and a.channel = b.channel",
    }

    for table, move in moves.items():
        async with database.transaction():
            await database.execute(f"create temporary table kept_{table} as select * from {get_moved_table(table)}")
            await damage(database, move, *ids)

        with pytest.raises(InternalServerError, match=r"(was moved|moved to|moved from)"):
            await client.threads.get_state(ids[1])

        async with database.transaction():
            await database.execute(f"delete from {get_moved_table(table)}")
            await database.execute(f"insert into {get_moved_table(table)} select * from kept_{table}")

        assert (await client.threads.get_state(ids[1]))["values"]["word"] == "herring" * 100


def get_moved_table(table: str) -> str:
    return "checkpoints" if table == "checkpoints" else f"checkpoint_{table}"


@only("aes", "names")
async def test_document_moved_to_another_row_does_not_decrypt(client, server, database):
    first, second = [await client.threads.create(metadata={"title": word}) for word in (SECRET, "herring")]
    assistants = [await client.assistants.create("agent", context={"title": word}) for word in (SECRET, "herring")]

    for key in ("one", "two"):
        await client.store.put_item(["moved"], key, {"title": SECRET + key}, index=False)

    await damage(
        database,
        "update threads b set metadata = a.metadata from threads a where a.thread_id = $1 and b.thread_id = $2",
        UUID(first["thread_id"]),
        UUID(second["thread_id"]),
    )

    await damage(
        database,
        "update assistants b set context = a.context from assistants a where a.assistant_id = $1 "
        "and b.assistant_id = $2",
        *(UUID(one["assistant_id"]) for one in assistants),
    )

    await damage(
        database,
        "update store_items b set value = a.value from store_items a where a.key = 'one' and b.key = 'two' "
        "and a.namespace = b.namespace and a.namespace = '{moved}'",
    )

    for alone in (
        client.threads.get(second["thread_id"]),
        client.assistants.get(assistants[1]["assistant_id"]),
        client.store.get_item(["moved"], "two"),
    ):
        with pytest.raises(InternalServerError, match="moved to another field or row"):
            await alone

    assert (await client.threads.get(first["thread_id"]))["metadata"] == {"title": SECRET}
    await client.store.delete_item(["moved"], "two")


def labels(state: Any) -> dict[str, Any]:
    return {key: value for key, value in state["metadata"].items() if key != "thread_id"}


@only("aes", "names", "handlers")
async def test_copied_thread_decrypts(client, server, database):
    thread = await client.threads.create(metadata={"title": SECRET})
    thread_id = thread["thread_id"]
    for _ in range(5):
        await client.runs.wait(thread_id, "agent", input={"word": SECRET * 100, "tenant": {"title": SECRET}})

    await client.runs.wait(thread_id, "asker", input={"word": SECRET * 100})
    copy = await client.threads.copy(thread_id)
    copies = [copy, await client.threads.copy(copy["thread_id"])]
    history = await client.threads.get_history(thread_id, limit=1000)
    assert len(history) > 16
    await client.threads.delete(thread_id)

    for one in copies:
        assert (await client.threads.get(one["thread_id"]))["metadata"]["title"] == SECRET
        copied = await client.threads.get_history(one["thread_id"], limit=1000)
        assert [each["values"] for each in copied] == [each["values"] for each in history]
        assert [labels(each) for each in copied] == [labels(each) for each in history]
        assert copied[0]["tasks"][0]["interrupts"] == history[0]["tasks"][0]["interrupts"]
        answered = await client.runs.wait(one["thread_id"], "asker", command={"resume": SECRET})
        assert answered["notes"][-1] == SECRET

    await client.threads.prune([copies[1]["thread_id"]], strategy="keep_latest")
    assert (await client.threads.get_state(copies[1]["thread_id"]))["values"]["word"] == SECRET * 100


@only("names", "off")
async def test_envelope_lookalike_key_can_be_searched_for(client):
    label = {"__sealed__": str(uuid4())}
    thread = await client.threads.create(metadata=label)
    assert [one["thread_id"] for one in await client.threads.search(metadata=label)] == [thread["thread_id"]]
