"""The platform's server: identity, tracing, usage and control on one address."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from portside.annotation.http import routes as annotation
from portside.control.archive_store import ArchiveStore
from portside.control.http import routes as control
from portside.control.occupancy import occupied_by
from portside.control.scope import DesiredChanges, PlatformAddress
from portside.datasets.http import routes as datasets
from portside.identity import first_start
from portside.identity.guard import guard
from portside.identity.http import routes as identity
from portside.identity.keyring import Keyring
from portside.identity.keys import create_key
from portside.identity.types import KeyRequest
from portside.identity.workspaces import Occupants
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.errors import UserMistake
from portside.kernel.http import health
from portside.kernel.http.bodies import LimitBody
from portside.kernel.http.front import Front
from portside.kernel.http.prefixes import StripPrefix
from portside.kernel.http.routes import Api, Route, body_limits
from portside.kernel.migrations import migrate
from portside.kernel.outbound import OutboundRules
from portside.limits.callers import Callers, read_networks
from portside.limits.middleware import RateLimits
from portside.limits.table import Table, read_table
from portside.limits.windows import Windows
from portside.platform.chores import chores
from portside.platform.home import Home, read_key
from portside.platform.settings import PlatformSettings
from portside.prompts.http import routes as prompts
from portside.tracing.http import routes as tracing
from portside.tracing.info import Info
from portside.tracing.quotas import Quotas
from portside.tracing.retention import Retention
from portside.usage.http import routes as usage

ROOMS = [
    "portside.identity",
    "portside.limits",
    "portside.tracing",
    "portside.usage",
    "portside.datasets",
    "portside.prompts",
    "portside.annotation",
    "portside.control",
]
PREFIXES = ("/api/v1", "/api-host", "/api")
ROUTES: list[Route] = [*health.routes, *identity, *tracing, *datasets, *prompts, *annotation, *usage, *control]
LISTENER_PERMISSION = "listeners:work"
# What is not the hosted API, so that no rate limit speaks of it.
UNLIMITED = tuple(sorted({route.path.split("{", 1)[0] for route in (*health.routes, *control)}))


class PlatformApp(msgspec.Struct):
    """A running platform, short of its sockets. `new_key` is set at the first start alone."""

    asgi: Any
    draining: asyncio.Event
    changes: DesiredChanges
    new_key: str | None
    listener_key: str


@asynccontextmanager
async def open_platform(home: Home, settings: PlatformSettings, database_url: str) -> AsyncIterator[PlatformApp]:
    """Bring the database up to date and join the rooms; close everything at the end. Raises UserMistake."""
    db = await Database.connect(database_url)
    try:
        await migrate(db, ROOMS)
        if not home.master_key.exists() and await first_start.is_set_up(db):
            raise UserMistake(
                f"{home.master_key} is missing, and the secrets of this database cannot be opened without it; "
                "restore it from a backup"
            )
        new_key = await first_start.set_up(db, api_key=settings.api_key)
        if new_key is not None:
            home.keep_key(home.api_key, new_key)
        changes = DesiredChanges()
        services: dict[type, Any] = {
            Database: db,
            Keyring: (keyring := Keyring(db)),
            SecretBox: SecretBox.from_file(home.master_key),
            health.HealthChecks: health.HealthChecks({"postgres": db.is_alive}),
            DesiredChanges: changes,
            Info: Info(settings.region),
            Quotas: Quotas(db),
            Retention: Retention(settings.shortlived_trace_days, settings.longlived_trace_days, settings.trace_tier),
            PlatformAddress: PlatformAddress(settings.public_url),
            ArchiveStore: ArchiveStore(home.archives),
            Occupants: Occupants([occupied_by]),
            OutboundRules: OutboundRules(
                allow_private=settings.allow_private_git_hosts, allow_loopback=settings.allow_private_git_hosts
            ),
        }
        draining = asyncio.Event()
        windows = Windows(db)
        api = _limited(Api(ROUTES, services, guard), settings, keyring, windows)
        bounded = LimitBody(api, settings.http_max_request_body_bytes, body_limits(ROUTES))
        asgi = Front(StripPrefix(bounded, PREFIXES), draining=draining)
        async with windows.kept(), chores(services, settings):
            yield PlatformApp(asgi, draining, changes, new_key, await _listener_key(db, home))
    finally:
        await db.close()


async def _listener_key(db: Database, home: Home) -> str:
    """Return the key that the platform's own listener works with, made once."""
    key = read_key(home.listener_key)
    if key is None:
        request = KeyRequest("The platform's own listener", [LISTENER_PERMISSION])
        key = (await create_key(db, await first_start.first_owner(db), request)).key
        home.keep_key(home.listener_key, key)
    return key


def _limited(api: Any, settings: PlatformSettings, keyring: Keyring, windows: Windows) -> Any:
    """Put the rate limits before the routes. Raises UserMistake for a table or proxies that cannot be read."""
    if not settings.rate_limits:
        return api
    file = Path(settings.rate_limits_file) if settings.rate_limits_file else None
    callers = Callers(keyring, read_networks(settings.trusted_proxies))
    return RateLimits(api, Table(read_table(file), settings.region), callers, windows, spared=UNLIMITED)
