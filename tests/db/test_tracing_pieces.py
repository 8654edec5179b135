"""Values in pieces are read as they were sent, and a piece lives as long as a run needs it.

Both hold while other batches arrive, are sent again and are deleted at the same time.
"""

import asyncio
import json
import random
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portside.identity.types import Actor
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.tracing import ingest, pieces
from portside.tracing.attachments import DownloadLinks
from portside.tracing.ingest import RunTooLarge, store_batch
from portside.tracing.ingest_parser import parse_batch
from portside.tracing.pieces import UnusedPieces
from portside.tracing.retention import TracesToDelete, delete_traces
from portside.tracing.runs import RunPage, get_run, get_values, query_runs
from portside.tracing.runs import ValuesQuery as Shown
from portside.tracing.types import RunQuery, RunWrite

PACKAGES = ("portside.identity", "portside.tracing")

LINKS = DownloadLinks(SecretBox(bytes(32)), "")
TABLES = ("run_pieces", "piece_users", "stale_scopes")


def message(number: int) -> dict[str, Any]:
    dice = random.Random(number)
    return {"type": "human", "id": str(number), "content": " ".join(f"word{dice.randrange(10_000)}" for _ in range(40))}


def span(trace: UUID, run_id: UUID, thread: str, messages: list[Any], **fields: Any) -> dict[str, Any]:
    place = [trace] if run_id == trace else [trace, run_id]
    order = ".".join(f"20261121T020440000000Z{one}" for one in place)
    return {
        "id": run_id,
        "trace_id": trace,
        "dotted_order": order,
        "name": "r",
        "run_type": "chain",
        "start_time": "2026-11-21T02:04:40Z",
        "session_name": "p",
        "inputs": {"messages": messages},
        "extra": {"metadata": {"thread_id": thread}},
        **fields,
    }


async def store(db: Database, actor: Actor, *spans: dict[str, Any], key: str = "post", **limits: Any) -> None:
    body = json.dumps({key: spans}, default=str, separators=(",", ":"), ensure_ascii=False).encode()
    await store_batch(db, parse_batch(body, ""), by=actor, **limits)


async def counts(db: Database) -> dict[str, int]:
    return {name: await db.pool.fetchval(f"select count(*) from {name}") for name in TABLES}


async def clean(db: Database) -> None:
    task = UnusedPieces(db)
    while (await task.activate()).again:
        pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=40,
)
spacings = st.sampled_from([(",", ":"), (", ", ": "), (" ,", ":")])


@settings(max_examples=30)
@given(value=json_values, spacing=spacings, ascii_only=st.booleans())
def test_the_parts_of_a_value_are_together_its_text(value: Any, spacing: tuple[str, str], *, ascii_only: bool):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MIN_CHARS", "MIN_ITEMS", "MIN_ITEM_BYTES"):
            patch.setattr(pieces, name, 2)

        whole = json.dumps(value, separators=spacing, ensure_ascii=ascii_only).encode()
        found: dict[UUID, bytes] = {}
        parts = pieces.split_json(whole, found)

    joined = [part if isinstance(part, bytes) else b",".join(found[UUID(one)] for one in part) for part in parts]
    assert b"".join(joined) == whole


@pytest.mark.parametrize("copy_min_runs", [1, 1000])
async def test_values_in_pieces_are_read_as_they_were_sent(
    db: Database, actor: Actor, monkeypatch: pytest.MonkeyPatch, copy_min_runs: int
):
    monkeypatch.setattr(ingest, "COPY_MIN_RUNS", copy_min_runs)
    monkeypatch.setattr(pieces, "MIN_ITEM_BYTES", 1)
    compact, spaced = (gap.join(json.dumps(message(n)) for n in range(40)) for gap in (",", ", "))
    odd_texts = ",".join(json.dumps(f"{n} \\ \x00 ü🚢 \u2028" * 30) for n in range(40))
    numbers = ",".join(["[]", "{}", '"é"', "null", "1.50"] * 2000)

    odd = [
        f'{{"messages":[{odd_texts}]}}',
        f'{{"messages": [{spaced}], "b": 1}}',
        f'{{"a":1,"a":[{compact}]}}',
        f'{{"a":{{"b":[[{compact}]]}},"c":"]","d":[{compact}]}}',
        f'{{"n":[{numbers}]}}',
        f'{{"long":"{"x" * 10_000}"}}',
        f'{{"messages":[{",".join([json.dumps(message(1))] * 40)}]}}',
    ]

    ids = [uuid4() for _ in odd]
    rows = [
        json.dumps(span(run_id, run_id, "t", []), default=str).replace(
            '{"messages": []}', f'{value}, "outputs": {value}'
        )
        for run_id, value in zip(ids, odd, strict=True)
    ]

    await store_batch(db, parse_batch(f'{{"post": [{",".join(rows)}]}}'.encode(), ""), by=actor)
    assert await db.pool.fetchval("select count(*) from runs where left(inputs, 1) = e'\\x02'") == 4

    for run_id, value in zip(ids, odd, strict=True):
        run = await get_run(db, run_id, RunQuery(), LINKS, by=actor)
        assert (bytes(run.inputs).decode(), bytes(run.outputs).decode()) == (value, value)
        shown = {one.name: one for one in (await get_values(db, actor.workspace_id, run_id, Shown(chars=7))).values}
        assert (shown["inputs"].text, shown["inputs"].bytes) == (value[:7], len(value.encode()))


async def test_a_conversation_is_stored_once(db: Database, actor: Actor):
    turns = 60
    for turn in range(1, turns + 1):
        trace = uuid4()
        messages = [message(number) for number in range(2 * turn)]
        await store(db, actor, *(span(trace, trace if first else uuid4(), "t", messages) for first in (True, False)))

    said = sum(len(json.dumps(message(number))) for number in range(2 * turns))
    sent = await db.pool.fetchval("select sum(octet_length(inputs)) from readable_runs")
    stored = await db.pool.fetchval(
        "select sum(octet_length(inputs)) + (select sum(octet_length(data)) from run_pieces) from runs"
    )
    assert sent > 60 * said, "every span has all messages so far"
    assert stored < 7 * said

    other = uuid4()
    before = await counts(db)
    await store(db, actor, span(other, other, "another", [message(number) for number in range(40)]))
    assert (await counts(db))["run_pieces"] > before["run_pieces"], "threads share nothing"


async def test_filters_and_limits_see_the_whole_value(db: Database, actor: Actor):
    run_id = uuid4()
    messages = [message(number) for number in range(50)]
    await store(db, actor, span(run_id, run_id, "t", messages))
    text = json.dumps(messages[20], separators=(",", ":")) + "," + json.dumps(messages[21], separators=(",", ":"))
    assert await db.pool.fetchval("select count(*) from runs where position($1 in inputs) > 0", text) == 0

    for page in (RunPage(query=text[:1000]), RunPage(filter=f"search({json.dumps(text[300:600])})")):
        assert [run["id"] for run in (await query_runs(db, actor.workspace_id, page, LINKS)).runs] == [run_id]

    size = len(json.dumps({"messages": messages}, separators=(",", ":")))
    outputs = {"messages": messages[:40]}

    too_large = span(run_id, run_id, "t", messages, outputs=outputs)
    with pytest.raises(RunTooLarge):
        await store(db, actor, too_large, max_run_bytes=size + 1000)

    await store(db, actor, too_large, max_run_bytes=3 * size)


async def test_usage_in_a_value_in_pieces_is_counted(db: Database, actor: Actor):
    run_id = uuid4()
    used = {"input_tokens": 11, "output_tokens": 4, "total_tokens": 15}
    outputs = {"messages": [message(number) for number in range(50)], "usage_metadata": used}
    await store(db, actor, span(run_id, run_id, "t", [], run_type="llm", outputs=outputs))
    assert await db.pool.fetchval("select left(outputs, 1) from runs") == "\x02"
    assert await db.pool.fetchval("select total_tokens from readable_runs") == 15


async def test_pieces_live_as_long_as_a_run_needs_them(db: Database, actor: Actor):
    short = uuid4()
    long = uuid4()
    answers = {"messages": [message(number) for number in range(100, 130)]}
    await store(db, actor, span(short, short, "t", [message(number) for number in range(30)], outputs=answers))
    alone = await counts(db)

    await store(db, actor, span(long, long, "t", [message(number) for number in range(60)]))
    project = await db.pool.fetchval("select id from projects where name = 'p'")
    await delete_traces(db, actor.workspace_id, TracesToDelete(project, [long]))
    await clean(db)
    assert await counts(db) == alone, "what the deleted trace alone needed is deleted"
    run = await get_run(db, short, RunQuery(), LINKS, by=actor)
    assert json.loads(bytes(run.inputs)) == {"messages": [message(number) for number in range(30)]}
    assert json.loads(bytes(run.outputs)) == answers

    await delete_traces(db, actor.workspace_id, TracesToDelete(project, [short]))
    await clean(db)
    assert await counts(db) == dict.fromkeys(TABLES, 0)


async def test_replaced_values_leave_no_piece(db: Database, actor: Actor):
    run_id = uuid4()
    for first in range(0, 200, 50):
        messages = [message(number) for number in range(first, first + 50)]
        ended = f"2026-11-21T02:05:{first % 60:02}Z"
        await store(db, actor, span(run_id, run_id, "t", messages, end_time=ended), key="patch" if first else "post")

    await db.pool.execute("delete from runs")
    await clean(db)
    assert await counts(db) == dict.fromkeys(TABLES, 0)


async def test_scopes_that_are_written_to_are_cleaned_later(db: Database, actor: Actor):
    run_id = uuid4()
    await store(db, actor, span(run_id, run_id, "t", [message(number) for number in range(30)]))
    await db.pool.execute("delete from runs")
    cut = pieces.RunPieces(actor.workspace_id)
    messages = json.dumps({"messages": [message(number) for number in range(30)]}, separators=(",", ":"))
    thread = '{"metadata": {"thread_id": "t"}}'
    again = RunWrite(id=run_id, inputs=messages, extra=thread)

    await cut.cut([again])
    async with db.transaction() as tx:
        await cut.store(tx)
        before = await counts(db)
        await clean(db)
        assert await counts(db) == before, "the batch refers to pieces that no run has yet"

        await tx.connection.execute(
            "insert into runs (workspace_id, id, name, inputs, patched, patch_order, is_awaited)"
            " values ($1, $2, 'r', $3, 0, 0, false)",
            actor.workspace_id,
            run_id,
            again.inputs,
        )

        await cut.store_users(tx)

    await clean(db)
    assert await db.pool.fetchval("select whole_value(inputs) from runs") == messages


async def test_batches_that_arrive_during_deletions_stay_whole(db: Database, actor: Actor):
    """Many batches of a few conversations, deletions and cleaning at once."""
    dice = random.Random()
    sent: dict[UUID, list[int]] = {}
    is_over = asyncio.Event()

    async def deliver() -> None:
        for _ in range(15):
            thread = dice.choice("ab")
            count = dice.randrange(20, 60)
            first = 1000 * ord(thread)
            ids = [uuid4() for _ in range(3)]
            numbers = list(range(first, first + count))

            sent.update(dict.fromkeys(ids, numbers))
            messages = [message(number) for number in numbers]
            await store(db, actor, *(span(ids[0], run_id, thread, messages) for run_id in ids))

    async def delete() -> None:
        while not is_over.is_set():
            await db.pool.execute("delete from runs where id in (select id from runs order by random() limit 3)")
            await UnusedPieces(db).activate()

    deleting = asyncio.gather(delete(), delete())
    await asyncio.gather(*(deliver() for _ in range(3)))
    is_over.set()
    await deleting

    for row in await db.pool.fetch("select id, inputs from readable_runs"):
        assert json.loads(row["inputs"]) == {"messages": [message(number) for number in sent[row["id"]]]}

    await clean(db)

    for row in await db.pool.fetch("select id, inputs from readable_runs"):
        assert json.loads(row["inputs"]) == {"messages": [message(number) for number in sent[row["id"]]]}

    await db.pool.execute("delete from runs")
    await clean(db)
    assert await counts(db) == dict.fromkeys(TABLES, 0)
