"""Budgets on a real Postgres, with a clock that the test moves: at the limit, past it, and after the window's end."""

import asyncio
import multiprocessing
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from portside.identity import first_start, keys
from portside.identity.authentication import Authenticator
from portside.identity.keys import Owner
from portside.identity.types import KeyRequest
from portside.kernel.db import Database, Query
from portside.limits import callers as callers_module
from portside.limits.callers import MAX_UNVERIFIED_PER_ADDRESS, Callers
from portside.limits.middleware import LimitScope, RateLimits
from portside.limits.sql import sql
from portside.limits.table import Table, read_table
from portside.limits.types import CallerIdentity, Limit, Region
from portside.limits.windows import RETURN_AFTER_S, Windows
from tests.conftest import eventually

GOOD = "lsv2_pt_0123456789abcdef_0123456789"
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
ROWS = read_table()
# Each once: rows with the same limit count in the same way.
LIMITS = list(dict.fromkeys(limit for row in ROWS for limit in row.limits.values() if limit is not None))


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
async def db(platform_database: str) -> AsyncIterator[Database]:
    database = await Database.connect(platform_database)
    yield database
    await database.close()


async def spend(windows: Windows, name: bytes, limit: Limit, times: int) -> list[bool]:
    return [not (await windows.spend(name, limit)).is_over for _ in range(times)]


async def test_windows_of_a_wrong_clock_are_replaced(db) -> None:
    clock = Clock()
    name = secrets.token_bytes(16)
    limit = Limit(20, 60)
    clock.move(3600)

    windows = Windows(db, clock)
    assert await spend(windows, name, limit, 21) == [True] * 20 + [False]
    clock.move(-3600)

    for here in (windows, Windows(db, clock)):
        assert await spend(here, name, limit, 10) == [True] * 10

    assert not any(await spend(windows, name, limit, 3))
    # Clocks of processes that differ by less than a window share it.
    clock.move(-30)
    assert not any(await spend(Windows(db, clock), name, limit, 3))


async def test_what_was_reserved_by_a_wrong_clock_is_not_spent(db: Database) -> None:
    clock = Clock()
    name = secrets.token_bytes(16)
    limit = Limit(6400, 60)
    windows = Windows(db, clock)
    clock.move(3600)
    assert (await windows.spend(name, limit)).remaining == 6399

    clock.move(-3600)
    budget = await windows.spend(name, limit)
    assert (budget.remaining, budget.seconds_left) == (6399, 60)


async def test_remaining_requests_count_a_share_that_is_on_its_way_back(db: Database) -> None:
    limit = Limit(6400, 60)
    names = [secrets.token_bytes(16) for _ in range(2)]
    windows = Windows(db, Clock())
    before = [await windows.spend(name, limit) for name in names]
    assert [budget.remaining for budget in before] == [6399, 6399]

    async with db.transaction() as tx:
        # The shares of both budgets are returned together, and wait for the first one's row.
        await tx.connection.execute("select from rate_windows where budget = $1 for update", names[0])
        returning = asyncio.create_task(windows._return_shares(only_idle=False))
        statements = "pg_stat_activity where datname = current_database()"
        waiting = Query("waiting", f"select count(*) from {statements} and wait_event_type = 'Lock'")

        await eventually(lambda: db.fetchval(waiting))
        spending = asyncio.create_task(windows.spend(names[1], limit))

        # Time for a statement of another connection, which is what this request must not use.
        for _ in range(20):
            await db.fetchval(waiting)

    assert (await spending).remaining == 6398
    await returning


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.count} in {limit.seconds} s")
async def test_a_limit_of_the_table_is_reached_passed_and_begins_again(db, limit: Limit) -> None:
    clock = Clock()
    name = secrets.token_bytes(16)
    windows = Windows(db, clock)
    assert all(await spend(windows, name, limit, limit.count))
    over = await windows.spend(name, limit)
    assert (over.is_over, over.remaining, over.seconds_left) == (True, 0, limit.seconds)

    clock.move(limit.seconds - 0.5)
    assert (await windows.spend(name, limit)).is_over
    clock.move(0.5)
    assert all(await spend(windows, name, limit, min(limit.count, 50)))


async def test_a_window_starts_with_its_first_request(db) -> None:
    clock = Clock()
    name = secrets.token_bytes(16)
    limit = Limit(3, 10)
    windows = Windows(db, clock)

    clock.move(7)
    assert (await windows.spend(name, limit)).remaining == 2
    clock.move(9)
    budget = await windows.spend(name, limit)
    assert (budget.remaining, budget.seconds_left) == (1, 1)
    clock.move(1)
    assert (await windows.spend(name, limit)).remaining == 2


async def test_a_window_survives_a_restart(db) -> None:
    clock = Clock()
    name = secrets.token_bytes(16)
    limit = Limit(30, 60)
    assert all(await spend(Windows(db, clock), name, limit, 30))
    assert await spend(Windows(db, clock), name, limit, 2) == [False, False]


async def test_unused_shares_are_returned(db) -> None:
    name = secrets.token_bytes(16)
    limit = Limit(6400, 600)
    idle = Windows(db)
    busy = Windows(db)

    await idle.spend(name, limit)
    row = await db.fetchrow(sql.read_window, budget=name, now=datetime.now(UTC))
    assert row["used"] == 100

    async with idle.maintained():

        async def is_given_back() -> bool:
            row = await db.fetchrow(sql.read_window, budget=name, now=datetime.now(UTC))
            return row["used"] == 1

        await eventually(is_given_back)

    assert sum(await spend(busy, name, limit, 6400)) == 6399


async def test_a_process_that_stops_returns_its_shares(db) -> None:
    name = secrets.token_bytes(16)
    windows = Windows(db)
    async with windows.maintained():
        await windows.spend(name, Limit(6400, 600))

    assert (await windows.read_use([name]))[name][0] == 1


async def test_a_share_of_an_ended_window_is_not_returned_to_the_next_one(db) -> None:
    clock = Clock()
    name = secrets.token_bytes(16)
    limit = Limit(6400, 600)
    first, second = Windows(db, clock), Windows(db, clock)

    await first.spend(name, limit)
    clock.move(600)
    await second.spend(name, limit)
    await first._return_shares(only_idle=False)
    assert (await second.read_use([name]))[name] == (100, 600)


async def test_returned_shares_can_be_spent_by_other_processes(db) -> None:
    clock = Clock()
    name = secrets.token_bytes(16)
    limit = Limit(10, 60)
    windows = Windows(db, clock)
    assert await spend(windows, name, limit, 11) == [True] * 10 + [False]
    row = await db.fetchrow(sql.read_window, budget=name, now=clock())

    await db.execute(sql.return_shares, budgets=[name], ends=[row["ends_at"]], amounts=[1])
    assert await spend(windows, name, limit, 1) == [False]
    clock.move(RETURN_AFTER_S)
    assert await spend(windows, name, limit, 2) == [True, False]


async def test_concurrent_requests_pass_exactly_up_to_the_limit(db) -> None:
    name = secrets.token_bytes(16)
    limit = Limit(100, 600)
    windows = Windows(db)
    budgets = await asyncio.gather(*(windows.spend(name, limit) for _ in range(300)))
    assert sum(not budget.is_over for budget in budgets) == 100


async def test_a_process_that_knows_little_of_another_spends_what_is_left(db) -> None:
    """It takes a share of what it believes to be left; when less is left, it takes what it needs."""
    clock = Clock()
    name = secrets.token_bytes(16)
    limit = Limit(1000, 600)
    first, second = (Windows(db, clock) for _ in range(2))
    assert await spend(first, name, limit, 1) == [True]
    assert await spend(second, name, limit, 975) == [True] * 975

    # Until it is refused.
    assert False in await spend(first, name, limit, 100)
    row = await db.fetchrow(sql.read_window, budget=name, now=clock())
    assert row["used"] == 1000


def _spend_in_a_process(url: str, name: bytes, started: Any, passed: Any) -> None:
    async def work() -> int:
        database = await Database.connect(url)
        windows = Windows(database)
        count = 0
        started.wait()

        # Up to a refusal: a process that stopped before it could take the rest of its share along.
        while not (await windows.spend(name, Limit(1000, 600))).is_over:
            count += 1

        await database.close()
        return count

    passed.put(asyncio.run(work()))


async def test_four_processes_share_one_budget(db, platform_database) -> None:
    context = multiprocessing.get_context("spawn")
    name = secrets.token_bytes(16)
    started = context.Barrier(4)
    passed = context.Queue()
    workers = [
        context.Process(target=_spend_in_a_process, args=(platform_database, name, started, passed)) for _ in range(4)
    ]

    for worker in workers:
        worker.start()

    counts = [await asyncio.to_thread(passed.get, timeout=300) for _ in workers]

    for worker in workers:
        worker.join()

    assert sum(counts) == 1000


async def test_ended_windows_of_many_callers_are_deleted(db) -> None:
    clock = Clock()
    limit = Limit(15, 10)
    windows = Windows(db, clock)
    names = [number.to_bytes(16) for number in range(1_000)]
    # The tests of this module share the database.
    await db.execute(sql.delete_ended, now=clock() + timedelta(days=36500))

    await spend(windows, names[0], limit, 15)

    for part in range(0, len(names), 500):
        budgets = await asyncio.gather(*(windows.spend(name, limit) for name in names[part : part + 500]))
        assert sum(budget.is_over for budget in budgets) == (1 if part == 0 else 0)

    clock.move(11)
    assert await db.execute(sql.delete_ended, now=clock()) == 1_000


# The middleware


async def answer_with_path(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


async def ask(app: RateLimits, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    address = headers.pop("address", "192.0.2.1")
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "headers": raw,
        "client": (address, 5000),
    }

    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        said.append(message)

    await app(scope, receive, send)
    received = {name.decode().lower(): value.decode() for name, value in said[0]["headers"]}
    return said[0]["status"], received, said[1]["body"]


@pytest.fixture
async def app(db: Database) -> RateLimits:
    """The limits of the US before an application that answers all."""
    await first_start.set_up(db, api_key=GOOD)
    scope = LimitScope(lambda scope: scope["path"] == "/ok", needs_key=lambda _: False)
    return RateLimits(answer_with_path, Table(ROWS, Region.US), Callers(Authenticator(db)), Windows(db, Clock()), scope)


async def test_a_refusal_says_when_to_come_back(app) -> None:
    user = {"x_user_id": secrets.token_hex(8)}
    for left in range(29, -1, -1):
        status, headers, body = await ask(app, "POST", "/runs/x/trigger", **user)
        assert (status, headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == (200, "30", str(left))
        assert body == b"/runs/x/trigger"

    status, headers, body = await ask(app, "POST", "/runs/x/trigger", **user)
    assert (status, headers["content-type"]) == (429, "application/json")
    assert 1 <= int(headers["retry-after"]) <= 60
    assert headers["x-ratelimit-reset"] == headers["retry-after"]
    said = f"Rate limit exceeded; try again in {headers['retry-after']} s."
    assert msgspec.json.decode(body) == {"detail": said, "error": said}


async def test_a_key_has_one_budget_wherever_it_is_used(app) -> None:
    passed = [(await ask(app, "POST", "/runs/query", x_api_key=GOOD, address=f"192.0.2.{n}"))[0] for n in range(16)]
    assert passed == [200] * 15 + [429]


async def test_each_key_of_a_user_has_a_budget_of_its_own(app, db: Database) -> None:
    first = await Authenticator(db).authenticate(GOOD)
    owner = Owner(first.organization_id, first.workspace_id, first.user_id)
    second = (await keys.create_key(db, owner, KeyRequest("second"))).key
    await ask(app, "GET", "/repos", x_api_key=GOOD)
    left = [(await ask(app, "GET", "/repos", x_api_key=second))[1]["x-ratelimit-remaining"] for _ in range(2)]
    assert left == ["99", "98"]


async def test_bearer_key_has_the_budget_of_the_key(app) -> None:
    bearer = {"authorization": f"Bearer {GOOD}", "address": "192.0.2.50"}
    _, headers, _ = await ask(app, "GET", "/sessions", **bearer)
    assert headers["x-ratelimit-limit"] == "1000"
    left = int(headers["x-ratelimit-remaining"])
    _, headers, _ = await ask(app, "GET", "/sessions", x_api_key=GOOD)
    assert headers["x-ratelimit-remaining"] == str(left - 1)


async def test_a_user_has_a_budget_for_each_address(app) -> None:
    user = {"x_user_id": secrets.token_hex(8)}
    assert (await ask(app, "GET", "/sessions", **user, address="192.0.2.1"))[1]["x-ratelimit-remaining"] == "999"
    assert (await ask(app, "GET", "/sessions", **user, address="192.0.2.2"))[1]["x-ratelimit-remaining"] == "999"
    assert (await ask(app, "HEAD", "/sessions", **user, address="192.0.2.2"))[1]["x-ratelimit-remaining"] == "998"


async def test_a_request_for_headers_alone_spends_the_budget_of_the_whole_one(app) -> None:
    path = "/runs/0190a0c0-0000-7000-8000-000000000001"
    answers = [await ask(app, method, path, x_api_key=GOOD) for method in ("GET", "HEAD")]
    assert [headers["x-ratelimit-limit"] for _, headers, _ in answers] == ["30", "30"]
    left = [int(headers["x-ratelimit-remaining"]) for _, headers, _ in answers]
    assert left[1] == left[0] - 1


async def test_invented_identities_share_the_budget_of_their_address(app) -> None:
    for number in range(MAX_UNVERIFIED_PER_ADDRESS):
        headers = (await ask(app, "GET", "/sessions", x_api_key=f"made-up-{number}", address="198.51.100.1"))[1]
        assert headers["x-ratelimit-limit"] == "1000"

    for left in range(99, -1, -1):
        made_up = secrets.token_hex(8)
        _, headers, _ = await ask(app, "GET", "/sessions", x_user_id=made_up, address="198.51.100.1")
        assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("100", str(left))

    assert (await ask(app, "GET", "/sessions", x_api_key="made-up", address="198.51.100.1"))[0] == 429
    assert (await ask(app, "GET", "/sessions", x_api_key=GOOD, address="198.51.100.1"))[0] == 200


async def test_a_flood_from_many_addresses_takes_bounded_memory(db: Database, monkeypatch) -> None:
    monkeypatch.setattr(callers_module, "MAX_UNVERIFIED", 100)
    monkeypatch.setattr(callers_module, "MAX_ADDRESSES", 30)
    callers = Callers(Authenticator(db))

    def remembered() -> int:
        return sum(len(names) for _, names in callers._unverified.values())

    async def names(address: int, user: str) -> dict[Any, str]:
        headers = [(b"x-user-id", user.encode())]
        return await callers.names(
            {"type": "http", "scheme": "http", "headers": headers, "client": (f"2001:db8:{address:x}::1", 1)}
        )

    for address in range(20):
        for number in range(MAX_UNVERIFIED_PER_ADDRESS // 2):
            assert CallerIdentity.USER in await names(address, f"made-up-{number}")
            assert remembered() <= 100

    for address in range(100, 200):
        await names(address, "made-up")
        assert len(callers._unverified) <= 30

    assert remembered() == callers._unverified_count == 30

    for number in range(MAX_UNVERIFIED_PER_ADDRESS):
        await names(7, f"made-up-{number}")

    assert CallerIdentity.USER not in await names(7, "one more")


async def test_exempt_paths_are_not_counted(app) -> None:
    status, headers, _ = await ask(app, "GET", "/ok")
    assert status == 200
    assert not {name for name in headers if name.startswith("x-ratelimit")}
