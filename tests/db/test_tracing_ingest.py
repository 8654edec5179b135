"""Deliveries in any order, any number of times and at the same time leave the same runs and count each trace once."""

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from portside.identity import first_start, keys
from portside.identity.authentication import Authenticator
from portside.identity.keys import Owner
from portside.identity.types import Actor, KeyRequest
from portside.kernel.clock import now
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.errors import Invalid, Unavailable
from portside.tracing import ingest
from portside.tracing.attachments import DownloadLinks
from portside.tracing.ingest import COPY_MIN_RUNS, RunTooLarge, store_batch
from portside.tracing.ingest_parser import build_update_parser, parse_batch, parse_run
from portside.tracing.projects import delete_projects, ensure_project
from portside.tracing.refused_runs import raise_for_refused
from portside.tracing.run_merge import PATCH_BITS, POSITION_FIELDS
from portside.tracing.runs import TracedRunNotFound, get_run
from portside.tracing.sharing import ShareRequest, share_run
from portside.tracing.sql import sql
from portside.tracing.types import AttachmentWrite, FeedbackWrite, RunQuery, RunWrite

PACKAGES = ("portside.identity", "portside.tracing")

LINKS = DownloadLinks(SecretBox(bytes(32)), "")
ROOT, CHILD, GRANDCHILD = (UUID(int=n) for n in (30, 20, 10))


async def stranger(db: Database) -> Actor:
    """Somebody in another workspace."""
    owner = await first_start.get_first_owner(db)
    workspace_id = uuid4()
    insert = "insert into workspaces (id, organization_id, display_name, tenant_handle) values ($1, $2, 'W', 'w')"
    await db.pool.execute(insert, workspace_id, owner.organization_id)

    key = await keys.create_key(db, Owner(owner.organization_id, workspace_id), KeyRequest())
    return await Authenticator(db).authenticate(key.key)


def batch(**lists: list[dict[str, Any]]) -> Any:
    return parse_batch(json.dumps(lists, default=str).encode(), "")


def post(run_id: UUID, **fields: Any) -> dict[str, Any]:
    return {"id": run_id, "name": "r", "run_type": "chain", "start_time": "2026-11-21T02:04:40Z", **fields}


async def read_runs(db: Database) -> dict[UUID, dict[str, Any]]:
    """All runs as readers see them."""
    query = "select * from runs where name is not null order by id"
    rows = [dict(row) for row in await db.pool.fetch(query)]
    return {row.pop("id"): {k: v for k, v in row.items() if k not in {"received_at", "project_id"}} for row in rows}


async def list_traces(db: Database) -> list[UUID]:
    return [row["trace_id"] for row in await db.pool.fetch("select trace_id from traces order by trace_id")]


async def test_a_posted_run_can_be_read(db: Database, actor: Actor):
    await store_batch(db, batch(post=[post(ROOT, inputs={"a": 1}, tags=["t"], session_name="p")]), by=actor)
    run = await get_run(db, ROOT, RunQuery(), LINKS, by=actor)
    assert (run.name, run.status, run.trace_id, run.tags) == ("r", "pending", ROOT, ["t"])
    assert (bytes(run.inputs), bytes(run.outputs)) == (b'{"a": 1}', b"null")
    assert run.dotted_order == f"20261121T020440000000Z{ROOT}"
    assert run.session_id == (await ensure_project(db, actor.workspace_id, "p")).id
    assert await list_traces(db) == [ROOT]


@pytest.fixture(params=["merged", "copied where they may be"])
def ways_of_writing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have deliveries of any size merged, or copied where all their runs seem new."""
    monkeypatch.setattr(ingest, "COPY_MIN_RUNS", 1 if request.param.startswith("copied") else 1_000_000)


@pytest.mark.usefixtures("ways_of_writing")
async def test_every_order_and_repetition_gives_the_same_runs(db: Database, actor: Actor):
    deliveries = [
        {"post": [post(ROOT, inputs={"x": 1}, outputs={}, tags=["a"], extra={"v": 0})]},
        {"patch": [{"id": ROOT, "end_time": "2026-11-21T02:04:41Z", "outputs": {"y": 1}, "extra": {"v": 1}}]},
        {"patch": [{"id": ROOT, "end_time": "2026-11-21T02:04:42Z", "outputs": {"y": 2}, "error": "late"}]},
    ]

    results = []
    orders = [*itertools.permutations(range(3)), (0, 1, 2, 0, 1, 2), (2, 1, 0, 0), (1, 2, 0, 1), (2, 0, 1, 2, 0)]
    for order in orders:
        await db.pool.execute("truncate runs, traces")
        for index in order:
            await store_batch(db, batch(**deliveries[index]), by=actor)

        results.append((await read_runs(db), await list_traces(db)))

    assert all(result == results[0] for result in results)
    run = results[0][0][ROOT]
    assert (run["outputs"], run["extra"], run["tags"], run["error"]) == ('{"y": 2}', '{"v": 1}', ["a"], "late")
    assert (run["status"], run["inputs"]) == ("error", '{"x": 1}')


def generate_writes(dice: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return posts and patches of a few runs with random fields; end times repeat, so that writes tie."""
    ids = [UUID(int=n) for n in range(1, 5)]
    values: dict[str, Callable[[], Any]] = {
        "name": lambda: f"name {dice.random()}",
        "run_type": lambda: dice.choice(["llm", "tool"]),
        "start_time": lambda: f"2026-11-21T02:04:{dice.randrange(10):02}Z",
        "end_time": lambda: f"2026-11-21T02:05:{dice.randrange(4):02}Z",
        "tags": lambda: [f"tag {dice.random()}"],
        "error": lambda: f"error {dice.random()}",
        "reference_example_id": uuid4,
        **{name: lambda: {"n": dice.random()} for name in ("inputs", "outputs", "extra", "serialized")},
        "events": lambda: [{"n": dice.random()}],
    }

    def position(run_id: UUID) -> dict[str, Any]:
        """Where a run may stand: other writes may place it elsewhere, but no write contradicts itself."""
        above = dice.sample([one for one in ids if one != run_id], dice.randrange(3))
        place = {
            "trace_id": above[0] if above else run_id,
            "parent_run_id": above[-1] if above else None,
        }

        order = ".".join(f"20261121T020440000000Z{one}" for one in [*above, run_id])
        return {**{name: value for name, value in place.items() if dice.random() < 0.6}, "dotted_order": order}

    def write(**required: Any) -> dict[str, Any]:
        chosen = {name: make() for name, make in values.items() if dice.random() < 0.4}
        return {**chosen, **required, **position(required["id"])}

    posts = [
        write(id=run_id, name="r", start_time="2026-11-21T02:04:40Z") for run_id in ids if dice.random() < 0.8
    ] * dice.randrange(1, 3)

    return posts, [write(id=dice.choice(ids)) for _ in range(dice.randrange(1, 9))]


async def test_the_merge_rules_of_python_and_sql_are_equal(db: Database, actor: Actor):
    """One batch is merged by `merge_repeated`, single writes by `merge_runs`."""
    for seed in range(25):
        posts, patches = generate_writes(random.Random(seed))
        await db.pool.execute("truncate runs, traces")
        await store_batch(db, batch(post=posts, patch=patches), by=actor)
        together = await read_runs(db)

        await db.pool.execute("truncate runs, traces")

        for write in posts:
            await store_batch(db, batch(post=[write]), by=actor)

        for write in patches:
            await store_batch(db, batch(patch=[write]), by=actor)

        assert await read_runs(db) == together, seed


async def test_a_patch_is_not_shown_until_the_run_is_posted(db: Database, actor: Actor):
    await store_batch(db, build_update_parser(ROOT)(b'{"outputs": {"b": 2}, "end_time": 1795226925431}', ""), by=actor)
    with pytest.raises(TracedRunNotFound):
        await get_run(db, ROOT, RunQuery(), LINKS, by=actor)

    assert await list_traces(db) == []
    await store_batch(db, parse_run(json.dumps(post(ROOT), default=str).encode(), ""), by=actor)
    run = await get_run(db, ROOT, RunQuery(), LINKS, by=actor)
    assert (run.status, bytes(run.outputs)) == ("success", b'{"b": 2}')
    assert await list_traces(db) == [ROOT]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_children_get_their_dotted_order_in_any_order(db: Database, actor: Actor, order: tuple[int, ...]):
    runs = [post(ROOT), post(CHILD, parent_run_id=ROOT), post(GRANDCHILD, parent_run_id=CHILD)]
    for index in order:
        await store_batch(db, batch(post=[runs[index]]), by=actor)

    found = await read_runs(db)
    stamp = "20261121T020440000000Z"
    assert {run["trace_id"] for run in found.values()} == {ROOT}
    assert found[GRANDCHILD]["dotted_order"] == f"{stamp}{ROOT}.{stamp}{CHILD}.{stamp}{GRANDCHILD}"
    assert await list_traces(db) == [ROOT]


async def test_children_in_the_same_body_get_their_dotted_order(db: Database, actor: Actor):
    runs = [post(GRANDCHILD, parent_run_id=CHILD), post(CHILD, parent_run_id=ROOT), post(ROOT)]
    await store_batch(db, batch(post=runs), by=actor)
    assert {run["trace_id"] for run in (await read_runs(db)).values()} == {ROOT}


async def test_concurrent_parents_and_children_are_connected(db: Database, actor: Actor):
    families = [[uuid4() for _ in range(3)] for _ in range(20)]
    runs = [
        post(run_id, **({"parent_run_id": family[depth - 1]} if depth else {}))
        for family in families
        for depth, run_id in enumerate(family)
    ]

    random.Random(3).shuffle(runs)
    await asyncio.gather(*(store_batch(db, batch(post=[run]), by=actor) for run in runs))
    found = await read_runs(db)
    assert all(found[run_id]["trace_id"] == family[0] for family in families for run_id in family)
    assert await list_traces(db) == sorted(family[0] for family in families)


async def test_a_chain_that_is_too_deep_stays_without_dotted_order(db: Database, actor: Actor):
    ids = [uuid4() for _ in range(2000)]
    runs = [post(run_id, **({"parent_run_id": ids[n - 1]} if n else {})) for n, run_id in enumerate(ids)]
    await store_batch(db, batch(post=runs), by=actor)
    found = await read_runs(db)
    assert found[ids[200]]["trace_id"] == ids[0]
    assert found[ids[-1]]["trace_id"] is None
    assert (await get_run(db, ids[-1], RunQuery(), LINKS, by=actor)).trace_id == ids[-1]


async def test_a_child_without_its_parent_is_shown(db: Database, actor: Actor):
    await store_batch(
        db, batch(post=[post(CHILD, parent_run_id=ROOT), post(GRANDCHILD, parent_run_id=GRANDCHILD)]), by=actor
    )
    assert (await get_run(db, CHILD, RunQuery(), LINKS, by=actor)).trace_id == CHILD
    assert (await get_run(db, GRANDCHILD, RunQuery(), LINKS, by=actor)).parent_run_id is None


@pytest.mark.usefixtures("ways_of_writing")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_root_is_interrupted_by_a_run_below_it_in_any_order(db: Database, actor: Actor, order: tuple[int, ...]):
    end = "2026-11-21T02:04:41Z"
    dotted = "20261121T020440000000Z"
    root = post(ROOT, trace_id=ROOT, dotted_order=f"{dotted}{ROOT}", end_time=end)
    child = post(CHILD, trace_id=ROOT, parent_run_id=ROOT, dotted_order=f"{dotted}{ROOT}.{dotted}{CHILD}")
    child |= {"end_time": end, "error": "GraphInterrupt((Interrupt(value='really?'),))"}

    writes = [batch(post=[root]), batch(post=[child])]
    for number in order:
        await store_batch(db, writes[number], by=actor)

    assert await states(db) == {ROOT: "interrupted", CHILD: "interrupted"}
    failed = {**root, "error": "ValueError('no')"}
    await store_batch(db, batch(patch=[failed]), by=actor)
    assert (await states(db))[ROOT] == "error"


ASKED = '[\n  {\n    "id": "0f",\n    "value": "really?"\n  }\n]'
AT = "\n    at RunnableCallable.func (file:///app/agent.mjs:1:2)\n    at invoke (file:///app/more.mjs:3:4)"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        # LangChain's tracer for JavaScript: the message, an empty line and the stack, which repeats the message.
        (f"{ASKED}\n\nGraphInterrupt: {ASKED}{AT}", "interrupted"),
        (f"{ASKED}\n\nNodeInterrupt: {ASKED}{AT}", "interrupted"),
        (f"\n\nGraphInterrupt{AT}", "interrupted"),
        (f"Graph drained: shutdown\n\nGraphDrained: Graph drained: shutdown{AT}", "interrupted"),
        (f"\n\nParentCommand{AT}", "success"),
        # `traceable` for JavaScript has the class and the message alone.
        (f"GraphInterrupt: {ASKED}", "interrupted"),
        ("ParentCommand", "success"),
        # Errors whose messages look like that.
        (f"{ASKED}\n\nError: {ASKED}{AT}", "error"),
        (ASKED, "error"),
        (f"[1]\n\nGraphInterrupt: {ASKED}\n\nError: [1]\n\nGraphInterrupt: {ASKED}{AT}", "error"),
        (f"{ASKED}\n\nMyGraphInterrupt: {ASKED}{AT}", "error"),
        ("\n\n", "error"),
        ("ParentCommandError: no", "error"),
    ],
)
async def test_interrupts_of_javascript_are_told_from_failures(db: Database, actor: Actor, error: str, status: str):
    end = "2026-11-21T02:04:41Z"
    dotted = "20261121T020440000000Z"
    root = post(ROOT, trace_id=ROOT, dotted_order=f"{dotted}{ROOT}", end_time=end)
    child = post(CHILD, trace_id=ROOT, parent_run_id=ROOT, dotted_order=f"{dotted}{ROOT}.{dotted}{CHILD}")

    await store_batch(db, batch(post=[root, {**child, "end_time": end, "error": error}]), by=actor)
    found = await states(db)
    assert found[CHILD] == status
    assert found[ROOT] == ("interrupted" if status == "interrupted" else "success")
    stored = await db.pool.fetchval("select error from runs where id = $1", UUID(str(CHILD)))
    assert stored == error


async def states(db: Database) -> dict[UUID, str]:
    """How runs ended, as readers see it."""
    return {row["id"]: row["status"] for row in await db.pool.fetch("select id, status from readable_runs")}


async def test_overlapping_concurrent_batches_do_not_deadlock(db: Database, actor: Actor):
    ids = [uuid4() for _ in range(60)]
    last: dict[UUID, int] = {}

    async def deliver(seed: int) -> None:
        mine = ids[:]
        random.Random(seed).shuffle(mine)

        last.update((run_id, max(seed, last.get(run_id, 0))) for run_id in mine[::2])
        for _ in range(4):
            ends = {"end_time": f"2026-11-21T02:05:{seed:02}Z", "outputs": {"n": seed}}
            posts = [post(run_id, session_name=f"p{seed % 3}") for run_id in mine]
            await store_batch(db, batch(post=posts, patch=[{"id": run_id, **ends} for run_id in mine[::2]]), by=actor)

    await asyncio.gather(*(deliver(seed) for seed in range(8)))
    found = await read_runs(db)
    assert sorted(found) == sorted(ids) == await list_traces(db)
    assert {run_id: json.loads(run["outputs"])["n"] for run_id, run in found.items() if run["outputs"]} == last


async def test_a_batch_that_deadlocks_is_written_again(db: Database, actor: Actor):
    """A 409 would be the end of the batch: the tracing SDKs drop it."""
    await db.pool.execute("""
        create sequence conflicts;
        create function conflict() returns trigger language plpgsql as $$
        begin
            if nextval('conflicts') <= 2 then
                raise exception 'a deadlock' using errcode = '40P01';
            end if;
            return new;
        end $$;
        create trigger conflict before insert on feedback for each row execute function conflict();
    """)

    given = batch(post=[post(ROOT)])
    given.feedback.append(FeedbackWrite(uuid4(), ROOT, ROOT, "k", "{}", now()))
    await store_batch(db, given, by=actor)
    assert (list(await read_runs(db)), await list_traces(db)) == ([ROOT], [ROOT])
    assert await db.pool.fetchval("select count(*) from feedback") == 1
    await db.pool.execute("alter sequence conflicts restart minvalue -100 start -100")

    given.feedback[0].modified_at = now()
    with pytest.raises(Unavailable):
        await store_batch(db, given, by=actor)


async def test_of_two_writes_for_the_same_feedback_the_later_one_stays(db: Database, actor: Actor):
    """In whichever order a batch has them."""
    delivery = batch(post=[post(ROOT)])
    for feedback_id, is_reversed in ((uuid4(), False), (uuid4(), True)):
        writes = [
            FeedbackWrite(feedback_id, ROOT, ROOT, "k", body, now() - timedelta(days=days))
            for body, days in (("{}", 1), ('{"score": 1}', 0))
        ]
        delivery.feedback += reversed(writes) if is_reversed else writes

    await store_batch(db, delivery, by=actor)
    rows = await db.pool.fetch("select body from feedback")
    assert [row["body"] for row in rows] == ['{"score": 1}'] * 2


async def test_copied_runs_equal_merged_runs(db: Database, actor: Actor):
    """Also with what else their delivery brings, and where some of them turn out to be there."""
    ids = [UUID(int=n) for n in range(1, COPY_MIN_RUNS + 1)]
    runs = [post(one, tags=["a", "b"], inputs={"x": "\u0000"}, outputs={"n": 1}, error="e") for one in ids]
    late = [{"id": one, "end_time": "2026-11-21T02:04:42Z", "outputs": {"n": 2}} for one in ids[::2]]
    await store_batch(db, batch(post=runs, patch=late), by=actor, tier="shortlived")

    copied = await read_runs(db)
    tiers = await db.pool.fetch("select trace_id, tier from traces order by 1")
    assert [tuple(row) for row in tiers] == [(one, "shortlived") for one in ids]
    await store_batch(db, batch(post=runs, patch=late), by=actor)
    assert (await read_runs(db), await list_traces(db)) == (copied, ids)
    await db.pool.execute("truncate runs, traces")

    for one in [*({"post": [run]} for run in runs), *({"patch": [patch]} for patch in late)]:
        await store_batch(db, batch(**one), by=actor)

    assert (await read_runs(db), await list_traces(db)) == (copied, ids)


async def test_one_run_over_the_limit_refuses_its_whole_batch(db: Database, actor: Actor):
    limit = 10_000

    def values(size: int) -> dict[str, str]:
        return {"x": "a" * (size - len('{"x": ""}'))}

    async def store(**lists: list[dict[str, Any]]) -> None:
        await store_batch(db, batch(**lists), by=actor, max_run_bytes=limit)

    largest = post(ROOT, inputs=values(limit))
    with pytest.raises(RunTooLarge, match="INGEST_MAX_RUN_BYTES"):
        await store(post=[largest, post(CHILD, inputs=values(limit + 1))])

    assert (await read_runs(db), await list_traces(db)) == ({}, [])
    await store(post=[largest, post(CHILD, inputs=values(limit - 1_000))])
    with pytest.raises(RunTooLarge):
        await store(patch=[{"id": CHILD, "outputs": values(1_001)}])

    await store(patch=[{"id": CHILD, "outputs": values(1_000)}])


async def test_run_ids_are_scoped_to_their_workspace(db: Database, actor: Actor):
    other = await stranger(db)
    await store_batch(db, batch(post=[post(ROOT, name="mine")]), by=actor)
    await store_batch(db, batch(post=[post(ROOT, name="theirs")]), by=other)
    assert (await get_run(db, ROOT, RunQuery(), LINKS, by=actor)).name == "mine"
    assert (await get_run(db, ROOT, RunQuery(), LINKS, by=other)).name == "theirs"
    project = await ensure_project(db, actor.workspace_id, "p")
    patch = {"id": CHILD, "outputs": {"a": 1}}
    theirs = batch(post=[post(CHILD, session_id=project.id), post(GRANDCHILD)], patch=[patch])
    theirs.attachments.append(AttachmentWrite(CHILD, "a", "text/plain", b"x"))

    await store_batch(db, theirs, by=other)
    assert [refused.run_id for refused in theirs.refused] == [CHILD]
    with pytest.raises(Invalid, match=r"no project .* exists in this workspace; 1 other run was stored"):
        raise_for_refused(theirs)

    assert not await db.pool.fetch("select from runs where id = $1", CHILD), "nor a half of it"
    assert not await db.pool.fetch("select from attachments")
    assert GRANDCHILD in await read_runs(db)


async def test_concurrent_requests_create_a_project_once(db: Database, actor: Actor):
    made = await asyncio.gather(*(ensure_project(db, actor.workspace_id, "p") for _ in range(20)))
    assert len({project.id for project in made}) == 1
    async with db.transaction() as tx:
        assert (await ensure_project(tx, actor.workspace_id, "p")).id == made[0].id

    for name in ("", "x" * 501, "a\x00"):
        with pytest.raises(Invalid):
            await ensure_project(db, actor.workspace_id, name)


async def test_deleting_a_project_deletes_runs_and_keeps_billing(db: Database, actor: Actor):
    await store_batch(db, batch(post=[post(ROOT, session_name="p"), post(CHILD, session_name="q")]), by=actor)
    project = await ensure_project(db, actor.workspace_id, "p")
    await share_run(db, ROOT, ShareRequest(), by=actor)
    other = await stranger(db)

    await delete_projects(db, other.workspace_id, [project.id])
    assert ROOT in await read_runs(db)

    for _ in range(2):
        await delete_projects(db, actor.workspace_id, [project.id])

    assert list(await read_runs(db)) == [CHILD]
    assert await db.pool.fetchval("select count(*) from shared_runs") == 0
    assert len(await list_traces(db)) == 2
    assert (await ensure_project(db, actor.workspace_id, "p")).id != project.id


def test_merge_rules_cover_every_column():
    described = {
        *POSITION_FIELDS,
        *(name for _, name in PATCH_BITS),
        "id",
        "is_post",
        "patched",
        "patch_order",
        "is_awaited",
    }

    assert described == set(msgspec.structs.asdict(RunWrite(id=ROOT)))

    for bit, name in PATCH_BITS:
        assert (
            f"{name} = merge_field(r.{name}, excluded.{name},\n            (r.patched & {bit}, " in sql.merge_runs.sql
        )


async def test_children_that_are_placed_at_once_are_looked_up_one_by_one(db: Database, actor: Actor):
    """In a new workspace, of which the planner knows nothing, thousands of them would be compared with one another."""
    children = [post(uuid4(), parent_run_id=ROOT) for _ in range(100)]
    await store_batch(db, batch(post=children), by=actor)
    query = sql.place_children
    values = query.arguments({"workspace_id": actor.workspace_id, "ids": [ROOT]})
    plan = "\n".join(row[0] for row in await db.pool.fetch(f"explain {query.sql}", *values))
    assert "Join Filter" not in plan, plan
    await store_batch(db, batch(post=[post(ROOT)]), by=actor)

    found = await read_runs(db)
    assert {run["dotted_order"].count(".") for run_id, run in found.items() if run_id != ROOT} == {1}
