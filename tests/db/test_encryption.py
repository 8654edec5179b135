"""What happens to a database that was written under another key."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_config, generate_metadata

from portside.agent.checkpoints import PostgresSaver
from portside.agent.encryption.codec import SealingCodec, refuse_unreadable
from portside.agent.encryption.errors import CannotDecrypt
from portside.agent.encryption.setup import make_vault
from portside.agent.encryption.vault import Vault
from portside.agent.queue import lifecycle
from portside.agent.queue.lifecycle import Admission
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.threads.records import create_thread, get_thread, patch_thread, search_threads
from portside.agent.types.threads import ThreadCreate, ThreadPatch, ThreadSearch
from portside.kernel.db import Database
from portside.kernel.errors import Invalid
from portside.kernel.migrations import migrate

OLD, NEW = "o" * 32, "n" * 32


def vault(keys: str, names: str = "*") -> Vault:
    made = make_vault(AgentSettings(graph_aes_key=keys, graph_aes_json_keys=names))
    assert made is not None
    return made


@asynccontextmanager
async def opened(url: str, under: Vault | None) -> AsyncIterator[Database]:
    codec = None if under is None else SealingCodec(under)
    database = await Database.connect(url, max_size=2, schema="portside", codec=codec)
    try:
        await migrate(database, ["portside.agent"], schema="portside")
        yield database
    finally:
        await database.close()


async def test_another_key_is_a_clear_error_and_both_keys_read_everything(fresh_database):
    url = await fresh_database()
    async with opened(url, None) as db:
        plain = await create_thread(db, ThreadCreate(metadata={"title": "before"}))
    async with opened(url, vault(OLD)) as db:
        thread = await create_thread(db, ThreadCreate(metadata={"title": "swordfish"}))
    async with opened(url, vault(NEW)) as db:
        with pytest.raises(CannotDecrypt, match="which this server does not have"):
            await get_thread(db, thread.thread_id)
    async with opened(url, vault(f"{NEW},{OLD}")) as db:
        await patch_thread(db, thread.thread_id, ThreadPatch(metadata={"other": 1}))
        page = await search_threads(db, ThreadSearch())
        assert sorted(bytes(found.metadata) for found in page.items) == [
            b'{"other":1,"title":"swordfish"}', b'{"title": "before"}'
        ]  # fmt: skip
        assert plain.thread_id in {found.thread_id for found in page.items}


def admission(word: str) -> Admission:
    configurable = {"graph_id": "agent", "secret": word}
    kwargs: dict[str, Any] = {"input": {"word": word}, "config": {"configurable": configurable, "metadata": {}}}
    return Admission(
        run_id=uuid4(), thread_id=uuid4(), assistant_id=uuid4(), metadata={"title": word}, kwargs=kwargs,
        strategy="enqueue", thread_metadata={"graph_id": "agent", "title": word}, create_thread=True, temporary=False,
        delay_s=0.0,
    )  # fmt: skip


async def test_a_run_that_cannot_be_decrypted_is_claimed_with_a_reason_and_holds_up_no_other(fresh_database):
    url = await fresh_database()
    async with opened(url, vault(OLD)) as db:
        await lifecycle.admit_run(db, admission("swordfish"), uuid4(), has_free_slot=False)
    async with opened(url, vault(NEW)) as db:
        await lifecycle.admit_run(db, admission("herring"), uuid4(), has_free_slot=False)
        unreadable, fine = await lifecycle.claim_runs(db, uuid4(), 10)
    with pytest.raises(CannotDecrypt, match="which this server does not have"):
        refuse_unreadable(unreadable.kwargs)
    assert unreadable.kwargs["config"]["configurable"]["graph_id"] == "agent"
    refuse_unreadable(fine.kwargs)
    assert fine.kwargs["input"] == {"word": "herring"}


async def test_checkpoints_are_sealed_and_their_own_labels_are_found(fresh_database):
    url = await fresh_database()
    config = generate_config()
    checkpoint = generate_checkpoint(channel_values={"x": ["swordfish"] * 100}, channel_versions={"x": "1"})
    async with opened(url, vault(OLD)) as db:
        saver = PostgresSaver(db, vault=vault(OLD))
        metadata = generate_metadata(title="swordfish", run_id="r1")
        placed = await saver.aput(config, checkpoint, metadata, {"x": "1"})
        await saver.aput_writes(placed, [("x", "swordfish")], "task")
        read = await saver.aget_tuple(placed)
        assert read is not None
        assert read.checkpoint["channel_values"] == {"x": ["swordfish"] * 100}
        assert read.metadata["title"] == "swordfish"
        assert read.pending_writes == [("task", "x", "swordfish")]
        assert [found.config async for found in saver.alist(config, filter={"run_id": "r1"})] == [read.config]
        stored = await db.pool.fetch(
            "select body as data from checkpoints union all select data from checkpoint_values"
            " union all select data from checkpoint_writes"
        )
        assert len(stored) == 3
        assert not any(b"swordfish" in row["data"] for row in stored)
    async with opened(url, vault(NEW)) as db:
        with pytest.raises(CannotDecrypt):
            await PostgresSaver(db, vault=vault(NEW)).aget_tuple(placed)


@pytest.mark.parametrize(
    "access",
    [
        {"equal": {"title": "x"}, "rest": []},
        {"equal": {}, "rest": [{"op": "any", "of": [{"op": "has", "key": "title", "values": ["x"]}]}]},
    ],
    ids=["equal", "nested"],
)
async def test_an_authorization_filter_by_what_is_encrypted_is_refused(fresh_database, access):
    async with opened(await fresh_database(), vault(OLD, "title")) as db:
        thread = await create_thread(db, ThreadCreate(metadata={"title": "x", "owner": "ada"}))
        with pytest.raises(Invalid, match="'title' is encrypted"):
            await db.fetchval(sql.thread_fits, thread_id=thread.thread_id, access=access)
        clear = {"equal": {"owner": "ada"}, "rest": []}
        assert await db.fetchval(sql.thread_fits, thread_id=thread.thread_id, access=clear)
