"""The hosted API on a free port, as the platform serves it: every route also under /api/v1 and /api."""

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx2

from portside.annotation import http as annotation_http
from portside.datasets import http as datasets_http
from portside.identity import first_start, http, keys, oauth, signin
from portside.identity.authentication import Authenticator
from portside.identity.guard import AccessGuard
from portside.identity.keys import Owner
from portside.identity.services import IdentityServices
from portside.identity.types import Actor, KeyRequest
from portside.identity.workspaces import WorkspaceDeletionChecks
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.http.body_size import LimitBody
from portside.kernel.http.health import HealthChecks
from portside.kernel.http.middleware import RequestMiddleware
from portside.kernel.http.prefixes import StripPrefix
from portside.kernel.http.routes import Api, bind
from portside.kernel.http.server import Server, listen
from portside.kernel.large_reads import ReadBudget
from portside.kernel.migrations import is_migrated, migrate
from portside.prompts import http as prompts_http
from portside.tracing import http as tracing_http
from portside.tracing.prices import sync_prices
from portside.tracing.quotas import Quotas
from portside.tracing.retention import TraceRetention
from portside.tracing.services import PlatformInfo, TracingServices
from portside.usage import http as usage_http
from portside.usage.http import UsageServices
from tests.conftest import eventually

MAX_BODY_BYTES = 25 * 1024 * 1024
PACKAGES = [
    "portside.identity",
    "portside.tracing",
    "portside.usage",
    "portside.datasets",
    "portside.prompts",
    "portside.annotation",
]

ROUTES = [
    *http.routes,
    *signin.routes,
    *oauth.routes,
    *tracing_http.routes,
    *datasets_http.routes,
    *prompts_http.routes,
    *annotation_http.routes,
    *usage_http.routes,
]


@dataclasses.dataclass
class Hosted:
    """A running server: its address, the first key and whom that stands for."""

    url: str
    key: str
    actor: Actor
    db: Database
    client: httpx2.AsyncClient

    async def new_key(self, *permissions: str, workspace_id: UUID | None = None) -> str:
        """Make a service key; without permissions it may do everything."""
        owner = Owner(self.actor.organization_id, workspace_id or self.actor.workspace_id)
        request = KeyRequest(permissions=list(permissions) if permissions else None)
        return (await keys.create_key(self.db, owner, request)).key

    async def new_workspace(self, name: str) -> UUID:
        """Make a second workspace in the organization."""
        workspace_id = uuid4()
        await self.db.pool.execute(
            "insert into workspaces (id, organization_id, display_name, tenant_handle) values ($1, $2, $3, $4)",
            workspace_id,
            self.actor.organization_id,
            name,
            name.lower(),
        )

        return workspace_id

    async def open_transactions(self) -> int:
        """Return the number of transactions that wait for the next statement of this server."""
        count = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in %'"
        return int(await self.db.pool.fetchval(count))

    async def usage(self, group_by: str, **params: Any) -> Any:
        """Return the traces of all time by a dimension."""
        query = {
            "start_time": "2020-01-01T00:00:00Z",
            "end_time": "2100-01-01T00:00:00Z",
            "workspace_ids": str(self.actor.workspace_id),
            "group_by": group_by,
        }

        response = await self.client.get("/api/v1/orgs/current/billing/granular-usage", params={**query, **params})
        response.raise_for_status()
        return response.json()["usage"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostedServices(IdentityServices, TracingServices, UsageServices):
    """The services of all packages of the hosted API."""


class HostedApi:
    """The API, whose services may be made anew."""

    def __init__(self, services: HostedServices) -> None:
        self.open(services)

    def open(self, services: HostedServices) -> None:
        """Bind the routes to services."""
        bound = bind(ROUTES, services)
        self._api = Api(bound, AccessGuard(services.authenticator), read_budget=services.read_budget)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._api(scope, receive, send)


class HostedServer:
    """A server that is new for each test, on one database, with one pool of connections."""

    def __init__(self, url: str, db: Database, app: HostedApi, services: dict[str, Any]) -> None:
        self._url = url
        self._db = db
        self._app = app
        self._services = services

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Hosted]:
        """Start with the first key, on a database without rows."""
        key = await first_start.set_up(self._db)
        assert key is not None
        services = build_services(self._db, **self._services)
        self._app.open(services)
        async with httpx2.AsyncClient(base_url=self._url, headers={"x-api-key": key}, timeout=300) as client:
            yield Hosted(self._url, key, await services.authenticator.authenticate(key), self._db, client)


def build_services(db: Database, **services: Any) -> HostedServices:
    return HostedServices(
        db=db,
        authenticator=Authenticator(db),
        health=HealthChecks({"postgres": db.is_alive}),
        info=PlatformInfo(),
        read_budget=ReadBudget(25_000_000, 75_000_000),
        box=SecretBox(os.urandom(32)),
        retention=TraceRetention(),
        quotas=Quotas(db),
        deletion_checks=WorkspaceDeletionChecks([]),
        **services,
    )


@asynccontextmanager
async def open_hosted(url: str, **services: Any) -> AsyncIterator[Hosted]:
    """Serve identity, tracing and usage on a database without rows, with more services."""
    async with hosted_server(url, **services) as server, server.begin() as running:
        yield running


@asynccontextmanager
async def hosted_server(url: str, **services: Any) -> AsyncIterator[HostedServer]:
    """Serve them for several tests, one after the other."""
    db = await Database.connect(url)
    if not await is_migrated(db):
        await migrate(db, PACKAGES)

    await sync_prices(db)
    hosted = HostedApi(build_services(db, **services))
    app = RequestMiddleware(LimitBody(StripPrefix(hosted, ("/api/v1", "/api")), MAX_BODY_BYTES))
    stop = asyncio.Event()
    server = Server(app, draining=asyncio.Event())
    listening = listen("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"

    await server.open([listening])
    serving = asyncio.create_task(server.serve_until(stop))
    try:
        yield HostedServer(address, db, hosted, services)
    finally:
        stop.set()
        await serving
        await db.close()


@asynccontextmanager
async def in_new_workspace(shared: Hosted) -> AsyncIterator[Hosted]:
    """The same server for a key of a new workspace: for tests that look at their workspace alone."""
    workspace_id = await shared.new_workspace(uuid4().hex)
    key = await shared.new_key(workspace_id=workspace_id)
    actor = await Authenticator(shared.db).authenticate(key)
    async with httpx2.AsyncClient(base_url=shared.url, headers={"x-api-key": key}, timeout=300) as client:
        yield dataclasses.replace(shared, key=key, actor=actor, client=client)


async def until_a_statement_waits(server: Hosted) -> None:
    """Wait until a statement of the server waits for the lock of another transaction."""
    count = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"

    async def waits() -> bool:
        return bool(await server.db.pool.fetchval(count))

    await eventually(waits)
