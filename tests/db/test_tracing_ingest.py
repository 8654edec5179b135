"""Deliveries in any order, any number of times and at the same time leave the same runs and count each trace once."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from portside.identity import first_start, keys
from portside.identity.keyring import Keyring
from portside.identity.keys import Owner
from portside.identity.types import Actor, KeyRequest
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.errors import Invalid
from portside.kernel.migrations import migrate
from portside.tracing import ingest
from portside.tracing.attachments import Links
from portside.tracing.deliveries import from_batch, from_run, from_update
from portside.tracing.folding import BITS, PLACE
from portside.tracing.ingest import COPIED_FROM, receive
from portside.tracing.projects import delete_projects, ensure_project
from portside.tracing.runs import RunNotFound, show_run
from portside.tracing.sql import sql
from portside.tracing.types import RunQuery, RunWrite

LINKS = Links(SecretBox(bytes(32)), "")
ROOT, CHILD, GRANDCHILD = (UUID(int=n) for n in (30, 20, 10))


@pytest.fixture
async def db(fresh_database: Callable[[], Awaitable[str]]) -> AsyncIterator[Database]:
    db = await Database.connect(await fresh_database())
    await migrate(db, ["portside.identity", "portside.tracing"])
    yield db
    await db.close()


@pytest.fixture
async def actor(db: Database) -> Actor:
    return await Keyring(db).authenticate(await first_start.set_up(db))


async def stranger(db: Database) -> Actor:
    """Somebody in another workspace."""
    owner = await first_start.first_owner(db)
    workspace_id = uuid4()
    insert = "insert into workspaces (id, organization_id, display_name, tenant_handle) values ($1, $2, 'W', 'w')"
    await db.pool.execute(insert, workspace_id, owner.organization_id)
    key = await keys.create_key(db, Owner(owner.organization_id, workspace_id), KeyRequest())
    return await Keyring(db).authenticate(key.key)


def batch(**lists: list[dict[str, Any]]) -> Any:
    return from_batch(json.dumps(lists, default=str).encode(), "")


def post(run_id: UUID, **fields: Any) -> dict[str, Any]:
    return {"id": run_id, "name": "r", "run_type": "chain", "start_time": "2026-11-21T02:04:40Z", **fields}


async def stored(db: Database) -> dict[UUID, dict[str, Any]]:
    """All runs as readers see them."""
    query = "select * from runs where name is not null order by id"
    rows = [dict(row) for row in await db.pool.fetch(query)]
    return {row.pop("id"): {k: v for k, v in row.items() if k not in {"received_at", "project_id"}} for row in rows}


async def counted(db: Database) -> list[UUID]:
    return [row["trace_id"] for row in await db.pool.fetch("select trace_id from traces order by trace_id")]


async def test_a_posted_run_is_there(db: Database, actor: Actor):
    await receive(db, batch(post=[post(ROOT, inputs={"a": 1}, tags=["t"], session_name="p")]), by=actor)
    run = await show_run(db, ROOT, RunQuery(), LINKS, by=actor)
    assert (run.name, run.status, run.trace_id, run.tags) == ("r", "pending", ROOT, ["t"])
    assert (bytes(run.inputs), bytes(run.outputs)) == (b'{"a": 1}', b"null")
    assert run.dotted_order == f"20261121T020440000000Z{ROOT}"
    assert run.session_id == (await ensure_project(db, actor.workspace_id, "p")).id
    assert await counted(db) == [ROOT]


@pytest.fixture(params=["merged", "copied where they may be"])
def ways_of_writing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have deliveries of any size merged, or copied where all their runs seem new."""
    monkeypatch.setattr(ingest, "COPIED_FROM", 1 if request.param.startswith("copied") else 1_000_000)


@pytest.mark.usefixtures("ways_of_writing")
async def test_every_order_and_repetition_gives_the_same(db: Database, actor: Actor):
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
            await receive(db, batch(**deliveries[index]), by=actor)
        results.append((await stored(db), await counted(db)))
    assert all(result == results[0] for result in results)
    run = results[0][0][ROOT]
    assert (run["outputs"], run["extra"], run["tags"], run["error"]) == ('{"y": 2}', '{"v": 1}', ["a"], "late")
    assert (run["status"], run["inputs"]) == ("error", '{"x": 1}')


async def test_one_body_and_many_give_the_same(db: Database, actor: Actor):
    dice = random.Random(7)
    ids = [UUID(int=n) for n in range(1, 5)]
    writes = [post(run_id, inputs={"n": 0}, outputs={}) for run_id in ids]
    patches = [
        {"id": dice.choice(ids), "end_time": f"2026-11-21T02:04:{n:02}Z", dice.choice(["outputs", "extra"]): {"n": n}}
        for n in range(10, 40)
    ]
    await receive(db, batch(post=writes, patch=patches), by=actor)
    together = await stored(db)
    await db.pool.execute("truncate runs, traces")
    for write in [*patches, *writes]:
        await receive(db, batch(**{"post" if "name" in write else "patch": [write]}), by=actor)
    assert await stored(db) == together


async def test_an_early_patch_is_not_a_run_until_it_is_posted(db: Database, actor: Actor):
    await receive(db, from_update(ROOT)(b'{"outputs": {"b": 2}, "end_time": 1795226925431}', ""), by=actor)
    with pytest.raises(RunNotFound):
        await show_run(db, ROOT, RunQuery(), LINKS, by=actor)
    assert await counted(db) == []
    await receive(db, from_run(json.dumps(post(ROOT), default=str).encode(), ""), by=actor)
    run = await show_run(db, ROOT, RunQuery(), LINKS, by=actor)
    assert (run.status, bytes(run.outputs)) == ("success", b'{"b": 2}')
    assert await counted(db) == [ROOT]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_children_find_their_place_in_any_order(db: Database, actor: Actor, order: tuple[int, ...]):
    runs = [post(ROOT), post(CHILD, parent_run_id=ROOT), post(GRANDCHILD, parent_run_id=CHILD)]
    for index in order:
        await receive(db, batch(post=[runs[index]]), by=actor)
    found = await stored(db)
    stamp = "20261121T020440000000Z"
    assert {run["trace_id"] for run in found.values()} == {ROOT}
    assert found[GRANDCHILD]["dotted_order"] == f"{stamp}{ROOT}.{stamp}{CHILD}.{stamp}{GRANDCHILD}"
    assert await counted(db) == [ROOT]


async def test_children_in_the_same_body_find_their_place(db: Database, actor: Actor):
    runs = [post(GRANDCHILD, parent_run_id=CHILD), post(CHILD, parent_run_id=ROOT), post(ROOT)]
    await receive(db, batch(post=runs), by=actor)
    assert {run["trace_id"] for run in (await stored(db)).values()} == {ROOT}


async def test_parents_and_children_that_come_at_once_meet(db: Database, actor: Actor):
    families = [[uuid4() for _ in range(3)] for _ in range(20)]
    runs = [
        post(run_id, **({"parent_run_id": family[depth - 1]} if depth else {}))
        for family in families
        for depth, run_id in enumerate(family)
    ]
    random.Random(3).shuffle(runs)
    await asyncio.gather(*(receive(db, batch(post=[run]), by=actor) for run in runs))
    found = await stored(db)
    assert all(found[run_id]["trace_id"] == family[0] for family in families for run_id in family)
    assert await counted(db) == sorted(family[0] for family in families)


async def test_a_chain_without_end_costs_no_more_than_its_start(db: Database, actor: Actor):
    ids = [uuid4() for _ in range(2000)]
    runs = [post(run_id, **({"parent_run_id": ids[n - 1]} if n else {})) for n, run_id in enumerate(ids)]
    await receive(db, batch(post=runs), by=actor)
    found = await stored(db)
    assert found[ids[200]]["trace_id"] == ids[0]
    assert found[ids[-1]]["trace_id"] is None
    assert (await show_run(db, ids[-1], RunQuery(), LINKS, by=actor)).trace_id == ids[-1]


async def test_a_child_whose_parent_never_comes_is_still_shown(db: Database, actor: Actor):
    await receive(
        db, batch(post=[post(CHILD, parent_run_id=ROOT), post(GRANDCHILD, parent_run_id=GRANDCHILD)]), by=actor
    )
    assert (await show_run(db, CHILD, RunQuery(), LINKS, by=actor)).trace_id == CHILD
    assert (await show_run(db, GRANDCHILD, RunQuery(), LINKS, by=actor)).parent_run_id is None


@pytest.mark.usefixtures("ways_of_writing")
async def test_overlapping_batches_at_once_neither_deadlock_nor_lose(db: Database, actor: Actor):
    ids = [uuid4() for _ in range(60)]
    last: dict[UUID, int] = {}

    async def deliver(seed: int) -> None:
        mine = ids[:]
        random.Random(seed).shuffle(mine)
        last.update((run_id, max(seed, last.get(run_id, 0))) for run_id in mine[::2])
        for _ in range(4):
            ends = {"end_time": f"2026-11-21T02:05:{seed:02}Z", "outputs": {"n": seed}}
            posts = [post(run_id, session_name=f"p{seed % 3}") for run_id in mine]
            await receive(db, batch(post=posts, patch=[{"id": run_id, **ends} for run_id in mine[::2]]), by=actor)

    await asyncio.gather(*(deliver(seed) for seed in range(8)))
    found = await stored(db)
    assert sorted(found) == sorted(ids) == await counted(db)
    assert {run_id: json.loads(run["outputs"])["n"] for run_id, run in found.items() if run["outputs"]} == last


async def test_many_new_runs_are_copied_as_one_would_be_merged(db: Database, actor: Actor):
    """Also with what else their delivery brings, and where some of them turn out to be there."""
    ids = [UUID(int=n) for n in range(1, COPIED_FROM + 1)]
    runs = [post(one, tags=["a", "b"], inputs={"x": "\u0000"}, outputs={"n": 1}, error="e") for one in ids]
    late = [{"id": one, "end_time": "2026-11-21T02:04:42Z", "outputs": {"n": 2}} for one in ids[::2]]
    await receive(db, batch(post=runs, patch=late), by=actor, tier="shortlived")
    copied, tiers = await stored(db), await db.pool.fetch("select trace_id, tier from traces order by 1")
    assert [tuple(row) for row in tiers] == [(one, "shortlived") for one in ids]
    await receive(db, batch(post=runs, patch=late), by=actor)
    assert (await stored(db), await counted(db)) == (copied, ids)
    await db.pool.execute("truncate runs, traces")
    for one in [*({"post": [run]} for run in runs), *({"patch": [patch]} for patch in late)]:
        await receive(db, batch(**one), by=actor)
    assert (await stored(db), await counted(db)) == (copied, ids)


async def test_run_ids_mean_something_only_in_their_workspace(db: Database, actor: Actor):
    other = await stranger(db)
    await receive(db, batch(post=[post(ROOT, name="mine")]), by=actor)
    await receive(db, batch(post=[post(ROOT, name="theirs")]), by=other)
    assert (await show_run(db, ROOT, RunQuery(), LINKS, by=actor)).name == "mine"
    assert (await show_run(db, ROOT, RunQuery(), LINKS, by=other)).name == "theirs"
    project = await ensure_project(db, actor.workspace_id, "p")
    with pytest.raises(Invalid, match="no project"):
        await receive(db, batch(post=[post(CHILD, session_id=project.id)]), by=other)
    assert CHILD not in await stored(db)


async def test_projects_are_made_once_however_many_ask(db: Database, actor: Actor):
    made = await asyncio.gather(*(ensure_project(db, actor.workspace_id, "p") for _ in range(20)))
    assert len({project.id for project in made}) == 1
    async with db.transaction() as tx:
        assert (await ensure_project(tx, actor.workspace_id, "p")).id == made[0].id
    for name in ("", "x" * 501, "a\x00"):
        with pytest.raises(Invalid):
            await ensure_project(db, actor.workspace_id, name)


async def test_a_deleted_project_takes_its_runs_but_not_the_bill(db: Database, actor: Actor):
    await receive(db, batch(post=[post(ROOT, session_name="p"), post(CHILD, session_name="q")]), by=actor)
    project = await ensure_project(db, actor.workspace_id, "p")
    other = await stranger(db)
    await delete_projects(db, other.workspace_id, [project.id])
    assert ROOT in await stored(db)
    for _ in range(2):
        await delete_projects(db, actor.workspace_id, [project.id])
    assert list(await stored(db)) == [CHILD]
    assert len(await counted(db)) == 2
    assert (await ensure_project(db, actor.workspace_id, "p")).id != project.id


async def test_every_query_prepares(db: Database):
    async with db.pool.acquire() as connection:
        for query in sql:
            await connection.prepare(query.sql)


def test_folding_knows_every_column():
    described = {*PLACE, *(name for _, name in BITS), "id", "is_post", "patched", "patch_order", "is_awaited"}
    assert described == set(msgspec.structs.asdict(RunWrite(id=ROOT)))
    for bit, name in BITS:
        assert f"{name} = settle(r.{name}, excluded.{name},\n            (r.patched & {bit}, " in sql.merge_runs.sql
