"""The audit log in its database: its hashes, what expires, and how many refused requests one minute may record."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from portside.audit import log
from portside.audit.entries import AuditedDatabase, BackgroundDatabase, PendingEntry, record_at, record_operation
from portside.audit.log import ExpiredEntries, export_entries, list_entries, verify_entries
from portside.audit.recording import MAX_REFUSALS, Recorder
from portside.audit.types import AuditExportQuery, AuditQuery
from portside.identity.sql import sql as identity
from portside.identity.types import Actor
from portside.kernel.db import Database
from portside.kernel.errors import Conflict, Forbidden, TooManyRequests
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.proxies import read_networks
from portside.kernel.http.routes import BaseServices, Context, Route
from portside.kernel.ids import uuid7
from portside.kernel.migrations import migrate

PACKAGES = ("portside.identity", "portside.audit")


async def actions(db: Database) -> list[str]:
    return [row["action"] for row in await db.pool.fetch("select action from audit_log order by seq")]


async def test_a_flood_of_refusals_is_counted_in_one_entry(db: Database) -> None:
    recorder = Recorder(db)

    async def handler(_ctx: Any) -> None:
        """Change something."""

    async def forbid(_ctx: Any, _route: Any) -> None:
        raise Forbidden

    action = Action("workspace.create", id_query="insert_workspace")
    (route,) = recorder.wrap_routes([Route("POST", "/workspaces", handler, "tests", audit=action)])
    for number in range(MAX_REFUSALS + 40):
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/workspaces",
            "headers": [],
            "client": (f"10.0.0.{number}", 1),
        }

        with pytest.raises(Forbidden):
            await recorder.wrap_guard(forbid)(Context(scope, None, None, BaseServices(db=db)), route)

    assert await recorder.end_minute() == 40
    assert await recorder.end_minute() == 0
    assert await actions(db) == ["workspace.create"] * MAX_REFUSALS + ["audit_log.suppress"]
    assert await db.pool.fetchval("select count from audit_log where action = 'audit_log.suppress'") == 40

    # Another minute has begun.
    with pytest.raises(Forbidden):
        await recorder.wrap_guard(forbid)(Context(scope, None, None, BaseServices(db=db)), route)

    assert (await actions(db))[-1] == "workspace.create"


async def request(recorder: Recorder, db: Database, action: Action, handler: Any, **headers: str) -> None:
    """Send a request to a route whose changes the recorder records."""
    (route,) = recorder.wrap_routes([Route("POST", "/things", handler, "tests", audit=action)])
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/things", "headers": raw, "client": ("10.0.0.1", 1)}
    await route.handler(Context(scope, None, None, BaseServices(db=db)))


async def outcomes(db: Database) -> list[tuple[str, int | None, str | None]]:
    rows = await db.pool.fetch("select outcome, status, error from audit_log order by seq")
    return [tuple(row) for row in rows]


@pytest.mark.parametrize(
    ("failure", "is_sign_in", "recorded"),
    [
        (Forbidden(), False, [("refused", 403, "forbidden")]),
        (Conflict(), False, []),
        (TooManyRequests(), False, []),
        (TooManyRequests(), True, [("refused", 429, "too_many_requests")]),
        (RuntimeError("a bug"), False, [("failed", 500, "RuntimeError")]),
    ],
)
async def test_request_that_changes_nothing_is_recorded_by_its_failure(
    db: Database, failure: Exception, recorded: list[Any], *, is_sign_in: bool
) -> None:
    async def fail(_ctx: Any) -> None:
        raise failure

    action = Action("organization.create", "insert_organization", is_sign_in=is_sign_in)
    with pytest.raises(type(failure)):
        await request(Recorder(db), db, action, fail)

    assert await outcomes(db) == recorded


async def test_request_that_fails_after_its_change_has_an_entry_for_each(db: Database) -> None:
    async def fail_late(ctx: Any) -> None:
        await ctx.db.execute(identity.insert_organization, id=uuid7(), display_name="made")
        raise Conflict

    with pytest.raises(Conflict):
        await request(Recorder(db), db, Action("organization.create", "insert_organization"), fail_late)

    assert [outcome for outcome, *_ in await outcomes(db)] == ["ok", "failed"]


async def test_address_behind_a_trusted_proxy_is_that_of_the_client(db: Database) -> None:
    async def create(ctx: Any) -> None:
        await ctx.db.execute(identity.insert_organization, id=uuid7(), display_name="made")

    action = Action("organization.create", "insert_organization")
    for trusted in ("10.0.0.0/8", ""):
        recorder = Recorder(db, read_networks(trusted))
        await request(recorder, db, action, create, x_forwarded_for="6.6.6.6, 1.2.3.4")

    addresses = [row["address"] for row in await db.pool.fetch("select address from audit_log order by seq")]
    assert addresses == ["1.2.3.4", "10.0.0.1"]


async def test_background_work_records_what_it_commits(db: Database) -> None:
    recorded = BackgroundDatabase(db, "organization.create", "insert_organization")

    async def create(name: str) -> None:
        async with recorded.transaction() as tx:
            await tx.execute(identity.insert_organization, id=uuid7(), display_name=name)
            if name == "fails":
                raise ValueError

    await create("one")
    with pytest.raises(ValueError):
        await create("fails")

    await create("two")
    async with recorded.transaction() as tx:
        await tx.fetch(identity.list_workspaces, organization_id=uuid7(), user_id=None, may_use_all=True, only=[])

    rows = await db.pool.fetch("select action, actor_kind, cardinality(object_ids) as ids from audit_log")
    assert [tuple(row) for row in rows] == [("organization.create", "platform", 1)] * 2


async def test_a_change_that_conflicts_is_made_again_with_one_entry(db: Database) -> None:
    await db.pool.execute("""
        create sequence conflicts;
        create function conflict() returns trigger language plpgsql as $$
        begin
            if nextval('conflicts') <= 2 then
                raise exception 'crossed' using errcode = '40001';
            end if;
            return new;
        end $$;
        create trigger conflict before insert on organizations for each row execute function conflict();
    """)

    entry = PendingEntry(Action("organization.create", "insert_organization"), {"actor_kind": "platform"})
    name = "made at the third attempt"
    await AuditedDatabase(db, entry).execute(identity.insert_organization, id=uuid7(), display_name=name)
    assert await db.pool.fetchval("select count(*) from organizations where display_name = $1", name) == 1
    assert await actions(db) == ["organization.create"]


async def test_changes_that_bypass_the_triggers_are_found(db: Database) -> None:
    for name in ("platform.start", "platform.start", "master_key.rotate", "platform.start"):
        await record_operation(db, name)

    chain = await verify_entries(db)
    assert (chain.entries, chain.first_seq, chain.last_seq, chain.broken_at) == (4, 1, 4, None)
    assert chain.last_hash is not None
    await db.pool.execute("alter table audit_log disable trigger user")
    await db.pool.execute("update audit_log set count = 2 where seq = 2")
    assert (await verify_entries(db)).broken_at == 2
    await db.pool.execute("update audit_log set count = 1 where seq = 2")

    assert (await verify_entries(db)).broken_at is None
    await db.pool.execute("delete from audit_log where seq = 3")
    assert (await verify_entries(db)).broken_at == 4


CHANGES = {
    "uuid": "gen_random_uuid()",
    "text": "'other'",
    "timestamp with time zone": "at + interval '1 microsecond'",
    "ARRAY": "array['other']",
    "integer": "599",
}
ALLOWED = {"actor_kind": "'user'", "outcome": "'refused'"}


async def test_change_of_any_value_of_an_entry_is_found(db: Database) -> None:
    for _ in range(3):
        await record_operation(db, "platform.start", fields=["A"], name="named")

    await db.pool.execute("alter table audit_log disable trigger user")
    await db.pool.execute("create table kept as select * from audit_log")
    columns = await db.pool.fetch(
        "select column_name, data_type from information_schema.columns "
        "where table_name = 'audit_log' and table_schema = current_schema() and column_name not in ('seq', 'hash')"
    )
    assert len(columns) > 20
    for name, kind in columns:
        await db.pool.execute(f"update audit_log set {name} = {ALLOWED.get(name, CHANGES[kind])} where seq = 2")
        assert (await verify_entries(db)).broken_at == 2, name
        await db.pool.execute("delete from audit_log")
        await db.pool.execute("insert into audit_log select * from kept")
        assert (await verify_entries(db)).broken_at is None, name


@pytest.mark.parametrize("count", [2, 3, 5])
async def test_entries_of_all_pages_are_exported_and_verified(
    db: Database, actor: Actor, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(log, "_PAGE", 2)
    for _ in range(count):
        await record_operation(db, "platform.start")

    lines = export_entries(db, actor, AuditExportQuery(), whole_organization=True)
    entries = [json.loads(line)["seq"] async for piece in lines for line in piece.splitlines()]
    assert entries == list(range(count, 0, -1))

    chain = await verify_entries(db)
    assert (chain.entries, chain.first_seq, chain.last_seq, chain.broken_at) == (count, 1, count, None)


async def test_period_of_entries_ends_before_its_end(db: Database, actor: Actor) -> None:
    for _ in range(3):
        await record_operation(db, "platform.start")

    async def find(**period: datetime) -> list[int]:
        page = await list_entries(db, actor, AuditQuery(**period), whole_organization=True)
        return [entry.seq for entry in page.items]

    first, second, third = [row["at"] for row in await db.pool.fetch("select at from audit_log order by seq")]
    assert await find(start_time=second) == [3, 2]
    assert await find(end_time=second) == [1]
    assert await find(start_time=first, end_time=third) == [2, 1]


async def test_old_entries_expire_and_the_log_says_so(db: Database) -> None:
    await record_operation(db, "platform.start")
    await db.pool.execute("alter table audit_log disable trigger user")
    await db.pool.execute("update audit_log set at = $1", datetime.now(UTC) - timedelta(days=31))
    await db.pool.execute("alter table audit_log enable trigger user")
    assert (await ExpiredEntries(db, 30).activate()).did == {"deleted": 0}, "the newest entry stays"
    await record_operation(db, "master_key.rotate")
    assert (await ExpiredEntries(db, 0).activate()).did == {}

    assert (await ExpiredEntries(db, 30).activate()).did == {"deleted": 1}
    rows = await db.pool.fetch("select seq, action, object_name from audit_log order by seq")
    assert [(row["seq"], row["action"]) for row in rows] == [(2, "master_key.rotate"), (3, "audit_log.expire")]
    assert rows[1]["object_name"].startswith("1 entries before ")
    assert (await verify_entries(db)).broken_at is None


async def test_entries_behind_one_of_a_clock_that_was_set_back_expire_with_it(db: Database) -> None:
    """Otherwise there would be a gap, as if somebody had removed them."""
    for _ in range(5):
        await record_operation(db, "platform.start")

    async def let_pass(days: dict[int, int]) -> None:
        await db.pool.execute("alter table audit_log disable trigger user")
        for seq, age in days.items():
            at = datetime.now(UTC) - timedelta(days=age)
            await db.pool.execute("update audit_log set at = $2 where seq = $1", seq, at)

        await db.pool.execute("alter table audit_log enable trigger user")

    async def list_left() -> list[int]:
        return [row["seq"] for row in await db.pool.fetch("select seq from audit_log order by seq")]

    await let_pass({1: 40, 2: 20, 3: 40, 4: 39, 5: 1})
    assert (await ExpiredEntries(db, 30).activate()).did == {"deleted": 1}
    assert await list_left() == [2, 3, 4, 5, 6]
    await let_pass({2: 31, 3: 51, 4: 50})
    assert (await ExpiredEntries(db, 30).activate()).did == {"deleted": 3}
    assert await list_left() == [5, 6, 7]


async def test_command_is_recorded_and_continues_without_a_log(
    fresh_database: Callable[[], Awaitable[str]],
) -> None:
    url = await fresh_database()
    await record_at(url, "backup.create", "before there is a log")
    db = await Database.connect(url)
    await migrate(db, ["portside.identity", "portside.audit"])
    await record_at(url, "backup.create", "a.backup")

    rows = await db.pool.fetch("select action, object_name, actor_kind from audit_log")
    assert [tuple(row) for row in rows] == [("backup.create", "a.backup", "platform")]
    await db.close()
