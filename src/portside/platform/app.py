"""The platform: one server for all of its packages, with their background tasks.

`open_platform` says in which order it begins, and ends. `modules.py` lists the packages, and `services.py` says what
each of them gets; they decide everything else. `serving.py` serves the platform.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from portside.audit.entries import record_start
from portside.control.desired_state import report_stopped_deployments
from portside.control.scope import DesiredChanges
from portside.dataplane.state import list_stopped_deployments
from portside.identity import first_start
from portside.identity.guard import AccessGuard
from portside.ingress.front import AgentsUnavailable, FromFront, Front
from portside.kernel.db import Database
from portside.kernel.disk import DiskWatch, make_watched_folder
from portside.kernel.errors import UserMistake
from portside.kernel.http.body_size import LimitBody
from portside.kernel.http.middleware import RequestMiddleware
from portside.kernel.http.prefixes import StripPrefix
from portside.kernel.http.routes import Api, BoundRoute, bind, get_body_limits
from portside.kernel.large_reads import return_large_blocks
from portside.kernel.migrations import DatabaseIsNewer, is_migrated, migrate
from portside.kernel.reconcile import Driver, Task
from portside.kernel.version import full_version
from portside.limits.middleware import LimitScope, RateLimits
from portside.operate.upgrade import read_upgrades
from portside.platform.home import Home, read_key
from portside.platform.listener import ensure_listener_key
from portside.platform.master_key import check_key
from portside.platform.modules import COMPONENTS, MODULES, PACKAGES, PREFIXES, ROUTES, UNLIMITED
from portside.platform.parts import Installation, PlatformParts, Problem, build_parts
from portside.platform.settings import PlatformSettings
from portside.platform.system import list_settings_in_force
from portside.tracing.prices import sync_prices


class PlatformApp(msgspec.Struct):
    """A running platform without its sockets. `new_key` is set only at the first start."""

    asgi: Any
    draining: asyncio.Event
    changes: DesiredChanges
    new_key: str | None
    listener_key: str


@asynccontextmanager
async def open_platform(
    home: Home,
    settings: PlatformSettings,
    database_url: str,
    problems: dict[str, Problem] | None = None,
    front: Front | None = None,
) -> AsyncIterator[PlatformApp]:
    """Migrate the database and open the platform; close everything at the end. Raises UserMistake.

    `GET /ok` reports `problems`: why Postgres or the listener, which other code supervises, are down.
    """
    return_large_blocks()
    installation = Installation(
        home=home,
        settings=settings,
        database_url=database_url,
        front=front,
        problems={} if problems is None else problems,
        modules=MODULES,
    )
    disk = DiskWatch(make_watched_folder(home.path), settings.disk_reserve)

    db = await Database.connect(database_url)
    try:
        await _prepare_database(db, home)
        box = await check_key(db, home)
        await sync_prices(db, Path(settings.model_prices_file) if settings.model_prices_file else None)

        new_key = await first_start.set_up(db, api_key=settings.api_key)
        if new_key is not None:
            home.keep_key(home.api_key, new_key)

        if settings.own_listener:
            # Before anybody can ask: the listener looks at its machine only when it has started.
            stopped_ids = await asyncio.to_thread(list_stopped_deployments, home.path / "dataplane")
            await report_stopped_deployments(db, stopped_ids)

        parts = await build_parts(installation, db, box, disk)
        routes, tasks = _open_components(parts)

        draining = asyncio.Event()
        asgi = _build_application(parts, routes, draining)
        listener_key, _ = await ensure_listener_key(db, home)

        await record_start(db, full_version(), _list_settings_in_use(settings))
        if front is not None:
            await front.open(db, parts.workspace_id)

        async with parts.windows.maintained(), _running(tasks):
            yield PlatformApp(
                asgi=asgi,
                draining=draining,
                changes=parts.changes,
                new_key=new_key,
                listener_key=listener_key,
            )
    finally:
        await db.close()


async def _prepare_database(db: Database, home: Home) -> None:
    """Migrate the database of this home. Raises UserMistake if it belongs to another one."""
    # Also before the migration, which would create tables in a database that DATABASE_URL names by mistake.
    await _check_database(db, home, is_migrated=await is_migrated(db))
    await _migrate(db, home)
    await _check_database(db, home, is_migrated=True)

    if not home.master_key.exists() and await first_start.is_set_up(db):
        raise UserMistake(
            f"{home.master_key} is missing, and the secrets of this database cannot be decrypted without it; "
            "restore it from a backup"
        )


async def _check_database(db: Database, home: Home, *, is_migrated: bool) -> None:
    """Raise UserMistake if the home belongs to a platform but the database is empty."""
    if read_key(home.api_key) is None or (is_migrated and await first_start.is_set_up(db)):
        return

    raise UserMistake(
        f"{home.api_key} belongs to a platform, but the database is empty. Nothing was changed. If DATABASE_URL names "
        "the wrong database, correct it; if the database was lost, restore its dump; to begin with an empty platform, "
        "move the home folder away"
    )


async def _migrate(db: Database, home: Home) -> None:
    """Migrate the database. Raises UserMistake, with the backup from before an upgrade that cannot be taken back."""
    try:
        await migrate(db, PACKAGES)
    except DatabaseIsNewer as exc:
        last = next(iter(read_upgrades(home.path)), None)
        if last is None or last.backup is None:
            raise

        raise UserMistake(f"{exc}. That of the upgrade to {last.after} is {last.backup}") from exc


def _open_components(parts: PlatformParts) -> tuple[list[BoundRoute], list[Task]]:
    """Return the routes and the background tasks of all packages. Raises UserMistake."""
    routes: list[BoundRoute] = []
    tasks: list[Task] = []
    for component in COMPONENTS:
        services = component.build_services(parts)
        routes += bind(parts.recorder.wrap_routes(component.module.routes), services)
        tasks += component.module.build_tasks(services)

    return routes, tasks


def _build_application(parts: PlatformParts, routes: Sequence[BoundRoute], draining: asyncio.Event) -> Any:
    """Return the application with its middleware, outermost last."""
    settings = parts.installation.settings
    has_front = parts.installation.front is not None

    guard = parts.recorder.wrap_guard(AccessGuard(parts.authenticator))
    api = Api(routes, guard, read_budget=parts.read_budget, disk=parts.disk)
    app: Any = api
    if parts.rate_limits is not None:
        app = RateLimits(api, *parts.rate_limits, LimitScope(_is_unlimited(api), _needs_key(api)))

    app = LimitBody(
        app,
        settings.http_max_request_body_bytes,
        get_body_limits(ROUTES),
        max_values=settings.http_max_request_body_values,
    )
    app = StripPrefix(app, PREFIXES)
    if not has_front:
        app = AgentsUnavailable(app)

    app = RequestMiddleware(app, draining=draining)
    return FromFront(app) if has_front else app


def _needs_key(api: Api) -> Callable[[Any], bool]:
    """Return a function that tells of the scope of a request whether it needs a key or login."""
    return lambda scope: (route := api.find(scope)) is not None and not route.public


def _is_unlimited(api: Api) -> Callable[[Any], bool]:
    """Return a function that tells of the scope of a request whether the rate limits do not apply to it.

    It goes by the route: a path below it may be another route.
    """
    return lambda scope: (route := api.find(scope)) is not None and route.path in UNLIMITED


def _list_settings_in_use(settings: PlatformSettings) -> list[str]:
    """Return the names of the settings that are not at their defaults."""
    return [entry.name for entry in list_settings_in_force(settings) if not entry.is_default]


@asynccontextmanager
async def _running(tasks: list[Task]) -> AsyncIterator[None]:
    """Run the background tasks until the end of the block."""
    driver = Driver(tasks)
    driver.start()
    try:
        yield
    finally:
        await driver.close()
