"""An AES key is replaced while data exists: everything moves to the new key, and the old one can be removed."""

from pathlib import Path

import asyncpg
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from portside.agent.encryption.ciphers import AesKeys
from portside.agent.encryption.key_renewal import base64_prefix
from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

pytestmark = pytest.mark.timeout(600)
OLD = "o" * 32
NEW = "n" * 32
MARKER = "swordfish"
LONG = [{"role": "user", "content": f"{MARKER} {number} " + "x" * 400} for number in range(120)]
CLEAN = "no stored data uses the older AES keys any more"


def under(*keys: str) -> dict[str, str]:
    # Events stay for as long as the test, and webhooks that nobody accepts wait.
    return {
        "GRAPH_AES_KEY": ",".join(keys),
        "GRAPH_AES_JSON_KEYS": "*",
        "RESUMABLE_STREAM_TTL_SECONDS": "86400",
        "GRAPH_WEBHOOKS": '{"url": {"disable_loopback": false, "require_https": false}}',
        "WEBHOOK_RETRY_AFTER_SECONDS": "600",
    }


def open_client(server: ServerProcess) -> LangGraphClient:
    return get_client(url=server.url, api_key="")


async def fill(client: LangGraphClient) -> dict[str, str]:
    """Store every kind of thing; return the ids."""
    threads = [await client.threads.create(metadata={"title": MARKER, "number": number}) for number in range(8)]
    thread = threads[0]["thread_id"]
    for number in range(3):
        await client.runs.wait(
            thread, "agent", input={"word": MARKER, "messages": LONG if number == 0 else []}, metadata={"of": MARKER}
        )

    followed = {"webhook": "http://127.0.0.1:9/hook", "stream_resumable": True}
    run = await client.runs.create(thread, "agent", input={"word": MARKER}, metadata={"of": MARKER}, **followed)
    await client.runs.join(thread, run["run_id"])
    assistant = await client.assistants.create("agent", metadata={"title": MARKER}, context={"secret": MARKER})

    await client.assistants.update(assistant["assistant_id"], metadata={"title": f"{MARKER} again"})
    cron = await client.crons.create("agent", schedule="0 0 1 1 *", input={"word": MARKER}, metadata={"title": MARKER})

    for number in range(8):
        await client.store.put_item(["memories"], f"key-{number}", {"text": MARKER})

    return {"thread": thread, "assistant": assistant["assistant_id"], "cron": cron["cron_id"]}


async def read(client: LangGraphClient, ids: dict[str, str]) -> list[object]:
    """Read everything back."""
    state = await client.threads.get_state(ids["thread"])
    history = await client.threads.get_history(ids["thread"], limit=100)
    crons = [cron for cron in await client.crons.search() if cron["cron_id"] == ids["cron"]]
    assert all(thread["metadata"]["title"] == MARKER for thread in await client.threads.search(limit=20))

    return [
        (await client.threads.get(ids["thread"]))["metadata"],
        state["values"],
        [one["values"] for one in history],
        [run["metadata"] for run in await client.runs.list(ids["thread"])],
        [one["metadata"] for one in await client.assistants.get_versions(ids["assistant"])],
        (await client.assistants.get(ids["assistant"]))["context"],
        [(one["metadata"], one["payload"]) for one in crons],
        [item["value"] for item in (await client.store.search_items(["memories"], limit=100))["items"]],
    ]


async def tables_with(url: str, key: str) -> dict[str, int]:
    """Return in how many rows of each table something is that a key encrypted."""
    (start,) = AesKeys(b"0" * 32, key.encode()).older_starts
    connection = await asyncpg.connect(url)
    try:
        names = await connection.fetch(
            "select table_name, column_name, data_type from information_schema.columns"
            " where table_schema = 'portside' and data_type in ('bytea', 'jsonb', 'text')"
            " and table_name in (select tablename from pg_tables where schemaname = 'portside')"
        )

        found: dict[str, int] = {}
        for table, column, kind in names:
            held = "position($1::bytea in {})" if kind == "bytea" else "position($1 in {}::text)"
            query = f'select count(*) from portside."{table}" where {held.format(f"{chr(34)}{column}{chr(34)}")} > 0'

            count = await connection.fetchval(query, start if kind == "bytea" else base64_prefix(start))
            if count:
                found[table] = found.get(table, 0) + count

        return found
    finally:
        await connection.close()


@pytest.mark.needs("langgraph-sdk", "0.2.14")
async def test_everything_moves_to_the_new_key(module_database: str, tmp_path: Path) -> None:
    for name in ("old", "both", "new"):
        (tmp_path / name).mkdir()

    with agent_server(module_database, tmp_path / "old", project="encryption_aes", **under(OLD)) as server:
        async with open_client(server) as client:
            ids = await fill(client)
            before = await read(client, ids)

    stored = await tables_with(module_database, OLD)
    kinds = {
        "threads",
        "runs",
        "assistants",
        "assistant_versions",
        "crons",
        "store_items",
        "checkpoints",
        "checkpoint_values",
        "checkpoint_writes",
        "checkpoint_pieces",
        "webhook_deliveries",
        "stream_chunks",
    }

    assert stored.keys() >= kinds - {"checkpoint_writes"}, stored
    with agent_server(module_database, tmp_path / "both", project="encryption_aes", **under(NEW, OLD)) as server:
        await eventually(lambda: server.has_logged(CLEAN))
        async with open_client(server) as client:
            assert await read(client, ids) == before

    left = await tables_with(module_database, OLD)
    assert not left.keys() & kinds, left
    with agent_server(module_database, tmp_path / "new", project="encryption_aes", **under(NEW)) as server:
        async with open_client(server) as client:
            assert await read(client, ids) == before
            await client.runs.wait(ids["thread"], "agent", input={"word": MARKER})
