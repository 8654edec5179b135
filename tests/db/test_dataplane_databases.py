"""Databases of deployments on a real Postgres.

A deployment for which there are no connections is refused, and the platform can always connect.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from portside.dataplane.compute.databases import IDLE_CONNECTIONS, Databases, database_name
from portside.dataplane.failures import CreateFailed, NoConnectionsLeft
from portside.kernel.db import Database
from portside.kernel.embedded import RESERVED_CONNECTIONS, EmbeddedPostgres, default_connections
from tests.conftest import eventually


async def test_database_is_created_and_dropped(postgres: str, tmp_path: Path):
    databases = Databases(postgres)
    one = uuid4()
    other = uuid4()
    try:
        for deployment in (one, other):
            await databases.ensure(deployment, tmp_path / str(deployment))

        password = (tmp_path / str(one)).read_text()
        await databases.ensure(one, tmp_path / str(one))
        assert (tmp_path / str(one)).read_text() == password, "servers that run have this one"

        assert (tmp_path / str(one)).stat().st_mode & 0o777 == 0o600
        url = databases.url(one, tmp_path / str(one))
        connection = await asyncpg.connect(url)
        await connection.execute("create table mine (id int)")
        assert await connection.fetchval("select '[1,2]'::vector <=> '[2,4]'::vector") == pytest.approx(0)
        assert await connection.fetchval("select current_database()") == database_name(one)
        elsewhere = databases.url(other, tmp_path / str(other)).replace(f"/{database_name(other)}?", "/portside?")
        assert "/portside?" in elsewhere

        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await asyncpg.connect(url.replace(f"/{database_name(one)}?", f"/{database_name(other)}?"))

        await databases.drop(one)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await connection.fetchval("select 1")

        await connection.close()
        with pytest.raises(asyncpg.PostgresError):
            await asyncpg.connect(url)

        admin = await asyncpg.connect(postgres)
        names = [database_name(each) for each in (one, other)]
        left = await admin.fetch("select rolname from pg_roles where rolname = any($1)", names)
        await admin.close()
        assert [row["rolname"] for row in left] == [database_name(other)], "the role went with the database"
    finally:
        for deployment in (one, other):
            await databases.drop(deployment)
            await databases.drop(deployment)


async def test_many_deployments_look_for_their_databases_at_once(postgres: str, tmp_path: Path):
    databases = Databases(postgres)
    here = uuid4()
    missing = uuid4()
    try:
        await databases.ensure(here, tmp_path / "password")
        found = await asyncio.gather(*(databases.exists(each) for each in (here, missing) * 20))
        assert found == [True, False] * 20
        await databases.drop(here)

        # Each later look sees what has changed.
        assert not await databases.exists(here)
        assert await Databases("postgresql://portside@127.0.0.1:1/portside").exists(here)
    finally:
        await databases.drop(here)


async def test_lost_password_file_is_replaced(postgres: str, tmp_path: Path):
    databases = Databases(postgres)
    deployment = uuid4()
    try:
        await databases.ensure(deployment, tmp_path / "password")
        (tmp_path / "password").unlink()
        await databases.ensure(deployment, tmp_path / "password")
        connection = await asyncpg.connect(databases.url(deployment, tmp_path / "password"))

        await connection.close()
    finally:
        await databases.drop(deployment)


async def test_role_without_rights_fails_with_hint(postgres: str, tmp_path: Path):
    databases = Databases(postgres)
    deployment = uuid4()
    await databases.ensure(deployment, tmp_path / "password")

    try:
        weak = Databases(databases.url(deployment, tmp_path / "password"))
        with pytest.raises(CreateFailed, match="CREATEDB"):
            await weak.ensure(uuid4(), tmp_path / "other")
    finally:
        await databases.drop(deployment)


async def test_non_superuser_role_suffices(postgres: str, tmp_path: Path):
    boss = uuid4()
    deployment = uuid4()
    databases = Databases(postgres)
    await databases.ensure(boss, tmp_path / "boss")

    admin = await asyncpg.connect(postgres)
    await admin.execute(f"alter role {database_name(boss)} createdb createrole")

    delegated = Databases(databases.url(boss, tmp_path / "boss"))
    try:
        await delegated.ensure(deployment, tmp_path / "password")
        await delegated.ensure(deployment, tmp_path / "password")
        connection = await asyncpg.connect(delegated.url(deployment, tmp_path / "password"))
        await connection.close()
        await delegated.drop(deployment)
    finally:
        await databases.drop(deployment)
        await databases.drop(boss)
        await admin.close()


@pytest.fixture(scope="module")
def running_server() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder), connections=28)
        yield server.acquire()
        server.release()


@pytest.fixture
async def small_server(running_server: str) -> AsyncIterator[str]:
    """An embedded Postgres of 28 connections, 7 of which are the platform's and 6 in reserve: five deployments fit.

    It has no deployments when a test begins.
    """
    yield running_server

    admin = await asyncpg.connect(running_server)
    left = await admin.fetch("select rolname as name from pg_roles where rolname like 'agent\\_%'")
    await admin.close()
    for role in left:
        await Databases(running_server).drop(UUID(role["name"].removeprefix("agent_")))


async def test_deployment_above_connection_budget_is_refused(small_server: str, tmp_path, monkeypatch):
    # Servers that have their connections count as alive, however busy the machine is.
    monkeypatch.setattr("portside.kernel.db.ALIVE_WITHIN_S", 300.0)
    databases = Databases(small_server)
    deployments = [uuid4() for _ in range(5)]
    opened: list[Database] = []
    try:
        for deployment in deployments:
            await databases.ensure(deployment, tmp_path / str(deployment))

        with pytest.raises(CreateFailed, match=r"the 5 deployments that are awake take 15, .* deployments may use 15"):
            await databases.ensure(uuid4(), tmp_path / "one too many")

        await databases.ensure(deployments[0], tmp_path / str(deployments[0]))
        # Three idle agent servers, one of which is then busy with all that Postgres gives to it.
        urls = [databases.url(deployment, tmp_path / str(deployment)) for deployment in deployments]
        opened += [await Database.connect(url) for url in urls[:3] for _ in range(3)]
        held = await _hold_all(urls[0])
        assert len(held) == 28 * 3 // 4 // 2 - 3, "half of what is for deployments, less the three that it holds idle"
        held += await _hold_all(urls[1])

        with pytest.raises(asyncpg.TooManyConnectionsError):
            await asyncpg.connect(urls[2])

        assert all([await database.is_alive() for database in opened])
        admin = await asyncpg.connect(small_server)
        await admin.close()

        for connection in held:
            await connection.close()

        await databases.drop(deployments[4])
        await eventually(lambda: fits(databases, deployments[4], tmp_path))
    finally:
        for database in opened:
            await database.close()


async def test_budget_counts_what_replicas_hold(small_server: str, tmp_path):
    databases = Databases(small_server)
    deployments = [uuid4() for _ in range(3)]
    for deployment in deployments[:2]:
        await databases.ensure(deployment, tmp_path / str(deployment))

    # Replicas of one deployment hold ten: with the other deployment's three, three for a third one are not left.
    url = databases.url(deployments[0], tmp_path / str(deployments[0]))
    held = [await asyncpg.connect(url) for _ in range(10)]
    with pytest.raises(CreateFailed, match=r"the 2 deployments .* take 13, .* Another one needs 3"):
        await databases.ensure(deployments[2], tmp_path / str(deployments[2]))

    assert not (tmp_path / str(deployments[2])).exists()
    await databases.ensure(deployments[0], tmp_path / str(deployments[0]))

    for connection in held:
        await connection.close()

    await eventually(lambda: fits(databases, deployments[2], tmp_path))


async def test_more_replicas_than_connections_are_refused(small_server: str, tmp_path):
    databases = Databases(small_server)
    deployments = [uuid4() for _ in range(2)]
    for deployment in deployments:
        await databases.ensure(deployment, tmp_path / str(deployment))

    # Deployments may use 15 connections, and three are the other one's share: four replicas of three fit.
    await databases.admit(deployments[0], 4)
    with pytest.raises(
        NoConnectionsLeft, match=r"5 replicas need 15, the other 1 deployments .* take 3, .* may use 15"
    ):
        await databases.admit(deployments[0], 5)

    async def fit_four() -> bool:
        try:
            await databases.admit(deployments[0], 4)
        except NoConnectionsLeft:
            return False

        return True

    # What its own busy replicas hold counts.
    held = [await asyncpg.connect(databases.url(deployments[0], tmp_path / str(deployments[0]))) for _ in range(10)]
    with pytest.raises(NoConnectionsLeft, match=r"3 replicas need 13, the other 1 deployments .* take 3"):
        await databases.admit(deployments[0], 3)

    for connection in held:
        await connection.close()

    await eventually(fit_four)

    # So does what those of others hold.
    held = [await asyncpg.connect(databases.url(deployments[1], tmp_path / str(deployments[1]))) for _ in range(9)]
    with pytest.raises(NoConnectionsLeft, match=r"3 replicas need 9, the other 1 deployments .* take 9"):
        await databases.admit(deployments[0], 3)

    # A server may always have a successor.
    held.append(await asyncpg.connect(databases.url(deployments[1], tmp_path / str(deployments[1]))))
    await databases.admit(deployments[0], 2)

    for connection in held:
        await connection.close()


async def test_deployments_that_sleep_need_no_connection(small_server: str, tmp_path):
    asleep: set[UUID] = set()
    databases = Databases(small_server, lambda: asleep)
    deployments = [uuid4() for _ in range(8)]
    for deployment in deployments[:2]:
        await databases.ensure(deployment, tmp_path / str(deployment))

    asleep |= set(deployments[:2])

    for deployment in deployments[2:7]:
        await databases.ensure(deployment, tmp_path / str(deployment))

    # One of the first two wakes only when another one sleeps.
    with pytest.raises(
        NoConnectionsLeft, match=r"another agent to wake: it needs 3, the other 5 deployments .* take 15"
    ):
        await databases.admit_awake(deployments[0])

    asleep.add(deployments[6])
    await databases.admit_awake(deployments[0])

    # Its servers have not ended yet.
    held = [await asyncpg.connect(databases.url(deployments[6], tmp_path / str(deployments[6]))) for _ in range(2)]
    with pytest.raises(NoConnectionsLeft, match="the other 4 deployments that are awake take 14"):
        await databases.admit_awake(deployments[0])

    for connection in held:
        await connection.close()

    await eventually(lambda: fits(databases, deployments[7], tmp_path))


async def fits(databases: Databases, deployment: UUID, folder: Path) -> bool:
    """Whether a deployment can be created. Postgres ends a closed connection's process a moment later."""
    with contextlib.suppress(CreateFailed):
        await databases.ensure(deployment, folder / str(deployment))
        return True

    return False


async def test_lost_database_is_not_replaced_by_an_empty_one(postgres: str, tmp_path: Path):
    databases = Databases(postgres)
    deployment = uuid4()

    name = database_name(deployment)
    password = tmp_path / "password"
    admin = await asyncpg.connect(postgres)
    try:
        with pytest.raises(CreateFailed, match=f"create database {name}"):
            await databases.ensure(deployment, password, is_new=False)

        assert not password.exists(), "a file would say that the database is there"
        assert not await admin.fetchval("select count(*) from pg_database where datname = $1", name)

        # The operator wants to go on without the data.
        await admin.execute(f"create database {name}")
        await databases.ensure(deployment, password, is_new=False)
        connection = await asyncpg.connect(databases.url(deployment, password))
        await connection.execute("create schema portside")
        await connection.close()
    finally:
        await databases.drop(deployment)
        await admin.close()


async def _hold_all(url: str) -> list[asyncpg.Connection]:
    held: list[asyncpg.Connection] = []
    while True:
        try:
            held.append(await asyncpg.connect(url))
        except asyncpg.TooManyConnectionsError:
            return held


def test_embedded_server_fits_two_hundred_deployments_with_eight_gigabytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 2_000_000, "SC_PAGE_SIZE": 4000}.__getitem__)
    usable = (default_connections() - RESERVED_CONNECTIONS) * 9 // 10
    assert usable // IDLE_CONNECTIONS >= 200
