"""The control plane on a free port, with its database and a listener's view of it."""

import asyncio
import dataclasses
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from portside.control.archive_store import ArchiveStore
from portside.control.deployments import describe_deployments
from portside.control.http import routes as control_routes
from portside.control.scope import DesiredChanges, PlatformAddress
from portside.control.services import ControlServices
from portside.identity import first_start, http, keys
from portside.identity.authentication import Authenticator
from portside.identity.guard import AccessGuard
from portside.identity.keys import Owner
from portside.identity.services import IdentityServices
from portside.identity.types import Actor, KeyRequest
from portside.identity.workspaces import WorkspaceDeletionChecks
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.http.body_size import LimitBody
from portside.kernel.http.middleware import RequestMiddleware
from portside.kernel.http.routes import Api, bind, get_body_limits
from portside.kernel.http.server import Server, listen
from portside.kernel.migrations import is_migrated, migrate
from portside.kernel.outbound import OutboundRules

PACKAGES = ["portside.identity", "portside.tracing", "portside.control", "portside.alerts"]
ADDRESS = PlatformAddress("http://platform.test:8700")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestedServices(IdentityServices, ControlServices):
    """The services of identity and control."""

    __test__ = False


class ControlApi:
    """The API with services that tests may replace."""

    def __init__(self, services: TestedServices) -> None:
        self.open(services)

    def open(self, services: TestedServices) -> None:
        """Bind the routes to services."""
        self.services = services
        self.api = Api(bind([*http.routes, *control_routes], services), AccessGuard(services.authenticator))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.api(scope, receive, send)


@dataclasses.dataclass
class Control:
    """A running control plane, called with the first key unless a call brings its own."""

    client: httpx2.AsyncClient
    db: Database
    actor: Actor
    listener: "ListenerSide"
    app: ControlApi

    @property
    def services(self) -> TestedServices:
        return self.app.services

    def set_services(self, **changed: Any) -> None:
        """Replace some of the services that handlers work with."""
        self.app.open(dataclasses.replace(self.app.services, **changed))

    async def create(self, name: str = "agent", **over: Any) -> Any:
        """Create a deployment and return it."""
        response = await self.client.post("/v2/deployments", json=create_body(name, **over))
        assert response.status_code == 201, response.text
        return response.json()

    async def get(self, deployment_id: str) -> Any:
        response = await self.client.get(f"/v2/deployments/{deployment_id}")
        assert response.status_code == 200, response.text
        return response.json()

    async def patch(self, deployment_id: str, **body: Any) -> Any:
        response = await self.client.patch(f"/v2/deployments/{deployment_id}", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    async def revisions(self, deployment_id: str, **params: Any) -> list[Any]:
        response = await self.client.get(f"/v2/deployments/{deployment_id}/revisions", params=params)
        assert response.status_code == 200, response.text
        return response.json()["resources"]

    async def statuses(self, deployment_id: str) -> list[str]:
        """Return the statuses of all revisions, oldest first."""
        return [revision["status"] for revision in reversed(await self.revisions(deployment_id, limit=100))]

    async def headers(self, *permissions: str) -> dict[str, str]:
        """Make a key with these permissions."""
        owner = Owner(self.actor.organization_id, self.actor.workspace_id)
        return {"x-api-key": (await keys.create_key(self.db, owner, KeyRequest(permissions=list(permissions)))).key}


@dataclasses.dataclass
class ListenerSide:
    """The calls that a listener makes."""

    client: httpx2.AsyncClient

    async def connect(self, compute_id: str = "local", **over: Any) -> str:
        body = {"compute_type": "process", "compute_id": compute_id, **over}
        response = await self.client.post("/internal/listeners/connect", json=body)
        assert response.status_code == 200, response.text
        return response.json()["listener_id"]

    async def desired(self, listener_id: str, after: int = 0, wait_s: float = 0) -> Any:
        params = {"after": after, "wait_s": wait_s}
        response = await self.client.get(f"/internal/listeners/{listener_id}/desired", params=params)
        assert response.status_code == 200, response.text
        return response.json()

    async def report(self, deployment_id: str, revision_id: str, status: str, **more: Any) -> httpx2.Response:
        path = f"/internal/deployments/{deployment_id}/revisions/{revision_id}/status"
        return await self.client.put(path, json={"status": status, **more})

    async def walk(self, deployment_id: str, revision_id: str, *statuses: str) -> None:
        """Report one status after the other."""
        for status in statuses:
            response = await self.report(deployment_id, revision_id, status)
            assert response.status_code == 204, response.text

    async def deploy(self, deployment_id: str, revision_id: str, commit: str | None = None) -> None:
        """Take a revision from CREATING to DEPLOYED; report the commit that was fetched, if one is given."""
        await self.walk(deployment_id, revision_id, "AWAITING_BUILD")
        building = await self.report(deployment_id, revision_id, "BUILDING", repo_commit_sha=commit)
        assert building.status_code == 204, building.text
        await self.walk(deployment_id, revision_id, "AWAITING_DEPLOY", "DEPLOYING", "DEPLOYED")

    async def drop(self, deployment_id: str) -> httpx2.Response:
        return await self.client.delete(f"/internal/deployments/{deployment_id}")


def create_body(name: str = "agent", **over: Any) -> dict[str, Any]:
    """A good body of a create; `source_config` and `source_revision_config` are merged into it."""
    body: dict[str, Any] = {
        "name": name,
        "source": "git_hosting",
        "source_config": {"repo_url": "https://git.example.com/team/agent.git"},
        "source_revision_config": {"repo_ref": "main", "graph_config_path": "langgraph.json"},
        "secrets": [],
    }

    for key, value in over.items():
        body[key] = {**body.get(key, {}), **value} if isinstance(value, dict) else value

    return body


class ControlServer:
    """A control plane that is new for each test, on one database, with one pool of connections."""

    def __init__(self, url: str, db: Database, services: TestedServices, app: ControlApi) -> None:
        self._url = url
        self._db = db
        self._services = services
        self._app = app

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Control]:
        """Start with the first key, on a database without rows."""
        key = await first_start.set_up(self._db)
        assert key is not None
        authenticator = Authenticator(self._db)
        changes = DesiredChanges()
        self._app.open(dataclasses.replace(self._services, authenticator=authenticator, changes=changes))
        try:
            async with httpx2.AsyncClient(base_url=self._url, headers={"x-api-key": key}, timeout=300) as client:
                actor = await authenticator.authenticate(key)
                yield Control(client, self._db, actor, ListenerSide(client), self._app)
        finally:
            changes.close()


@asynccontextmanager
async def control(url: str) -> AsyncIterator[Control]:
    """Serve identity and control on a database without rows."""
    async with control_server(url) as server, server.begin() as running:
        yield running


@asynccontextmanager
async def control_server(url: str) -> AsyncIterator[ControlServer]:
    """Serve identity and control for several tests, one after the other."""
    db = await Database.connect(url)
    if not await is_migrated(db):
        await migrate(db, PACKAGES)

    archives = tempfile.TemporaryDirectory()

    services = TestedServices(
        db=db,
        authenticator=Authenticator(db),
        box=SecretBox(os.urandom(32)),
        changes=DesiredChanges(),
        address=ADDRESS,
        archives=ArchiveStore(Path(archives.name)),
        deletion_checks=WorkspaceDeletionChecks([describe_deployments]),
        outbound_rules=OutboundRules(),
        revision_log_days=30,
    )

    app = ControlApi(services)
    stop = asyncio.Event()
    listening = listen("127.0.0.1", 0)
    server = Server(
        RequestMiddleware(LimitBody(app, 25 * 1024 * 1024, get_body_limits(app.api.routes))), draining=asyncio.Event()
    )

    await server.open([listening])
    serving = asyncio.create_task(server.serve_until(stop))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield ControlServer(address, db, services, app)
    finally:
        stop.set()
        await serving
        await db.close()
        archives.cleanup()
