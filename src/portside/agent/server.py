"""One agent server process: its sockets, its signals, and the hand-over from a previous replica.

A replica of a deployment first listens on a private socket. When the data plane writes a byte into the hand-over pipe,
the replica listens on the deployment's public socket too, and the data plane stops the previous replica.

The server can forward its log lines to another address (settings SELF_HOSTED_LOGS_*). These settings and the routes are
documented for LangGraph's agent server, but no payload is; this one is ours. A thread sends the collected lines once a
second. Code that logs never waits: lines that do not fit into memory or cannot be sent are dropped, and the next report
counts them. A report contains no secrets: beside what the log itself hides, it has neither values of variables with
secret-like names nor credentials of URLs, and of an exception only its class and where it was raised.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import socket
import sys
import termios
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import httpx
import msgspec
from prometheus_client import Counter

from portside import __version__
from portside.agent.access.authentication import refuse_open_address
from portside.agent.app import AgentApp, open_app
from portside.agent.config import AgentConfig
from portside.agent.settings import AgentSettings
from portside.executor.versions import missing_features
from portside.kernel.codec import dump_api
from portside.kernel.errors import UserMistake
from portside.kernel.http.server import Server, listen
from portside.kernel.http.shared_listeners import ConnectionShare
from portside.kernel.logs import SECRET_WORDS, get_logger, listen_to_logs
from portside.kernel.metrics import Siblings
from portside.kernel.outbound import ssl_context
from portside.kernel.startup import tune_garbage_collection
from portside.kernel.supervision import RETIRE, Supervision, WorkerProcess

if TYPE_CHECKING:
    from portside.executor.load import Graphs

log = get_logger(__name__)
# How long responses may still take after the runs have ended or were handed back.
STREAMS_LEFT_S = 5.0
EXIT_TIMEOUT_S = 10.0
FORWARDED_LINES = Counter(
    "portside_log_lines_forwarded_total", "Log lines that were sent to another address, or dropped.", ["outcome"]
)
DEFAULT_REPORT_PATH = "/v1/metadata/submit"
REPORT_EVERY_S, REPORT_TIMEOUT_S, LONGEST_REPORT_PAUSE_S = 1.0, 5.0, 60.0
REPORTS_CLOSE_WITHIN_S = 2.0
KEPT_LINES, LINES_OF_REPORT, FRAMES = 5_000, 200, 20
MAX_MESSAGE, MAX_FIELD, MAX_FIELDS = 2_000, 300, 20
# The platform's route accepts 256 KB.
MAX_REPORT_BYTES = 200_000
_HIDDEN = "[hidden]"
_CREDENTIALS = re.compile(r"(?<=://)[^\s/@]+(?=@)")
_SECRET_NAMES = (*SECRET_WORDS, "key", "credential", "dsn")
# Shorter values, such as `true`, would hide parts of ordinary words.
_SHORTEST_SECRET = 6
_NOT_FIELDS = frozenset({"event", "level", "timestamp", "exc_info", "stack_info", "logger"})


class Sockets(msgspec.Struct, frozen=True):
    """Inherited descriptors: the private socket, the deployment's public socket, and the hand-over pipe.

    When the data plane that has the public socket has died, its successor requests the socket at `heir_fd`.
    """

    private_fd: int | None = None
    public_fd: int | None = None
    handover_fd: int | None = None
    heir_fd: int | None = None


class WorkerContext(msgspec.Struct, frozen=True):
    """What one of several worker processes needs to serve the same address as the others."""

    process: WorkerProcess
    listening: socket.socket
    share: ConnectionShare
    siblings: Siblings


class ServedAgent(msgspec.Struct, frozen=True):
    """The agent to serve, its settings and its database."""

    config: AgentConfig
    graphs: "Graphs | None"
    """The graphs of this process; None if executors have them."""
    settings: AgentSettings
    database_url: str
    wrap: Callable[[Any], Any] = lambda app: app
    """Wraps the whole application: `portside dev` adds its pages so."""


async def serve(
    served: ServedAgent,
    sockets: Sockets,
    *,
    context: WorkerContext | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM (runs may end within the grace period) or SIGINT (runs are handed back at once).

    A second signal of either kind ends the grace period. With a `context`, this process is one of several that serve
    together. Raises DependencyUnavailable when the port or the database is not available, and UserMistake when the
    server would accept unauthenticated requests from other machines.
    """
    settings = served.settings
    if sockets.private_fd is None:
        refuse_open_address(served.config, settings)
    listening = open_first_socket(settings, sockets) if context is None else context.listening
    siblings = None if context is None else context.siblings
    opening = open_app(served.config, served.graphs, settings, served.database_url, siblings)
    async with opening as app, nullcontext() if siblings is None else siblings.describing(app.describe_worker):
        server = Server(
            served.wrap(app.asgi),
            draining=app.draining,
            grace_s=STREAMS_LEFT_S,
            body_within_s=settings.http_request_body_timeout_seconds,
            speaks_websocket=True,
        )

        stopping = _Stopping(server, app, settings)
        stopping.follow_signals(context)
        await server.open([listening])
        address = str(listening.getsockname())
        log.info("agent server ready", address=address, tier=settings.tier, graphs=list(served.config.graphs))
        if lacks := missing_features(app.libraries):
            log.info("some features are off, because the project's libraries are too old for them", features=lacks)
        tune_garbage_collection()
        on_ready()
        if sockets.public_fd is not None and sockets.handover_fd is not None:
            app.traffic.is_served = False
            _await_handover(server, app, sockets.public_fd, sockets.handover_fd)
            if sockets.heir_fd is not None:
                _await_heir(sockets.public_fd, sockets.heir_fd)
        await server.serve_until(stopping.requested, stopping.drain)
    log.info("agent server stopped")


class _Stopping:
    """How one server stops: gracefully, at once, or, as one of several processes, when the load does not need it."""

    def __init__(self, server: Server, app: AgentApp, settings: AgentSettings) -> None:
        self.requested = asyncio.Event()
        self._server, self._app = server, app
        self._hurry = asyncio.Event()
        self._grace_s, self._run_s = settings.bg_job_shutdown_grace_period_secs, settings.bg_job_timeout_secs
        self._retirement: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def follow_signals(self, context: WorkerContext | None) -> None:
        """Stop when a signal asks for it, or when the supervisor of this process is gone. Call it before `open`."""
        self._loop.add_signal_handler(signal.SIGINT, self._at_once)
        self._loop.add_signal_handler(signal.SIGTERM, self._gracefully if context is None else self._with_others)
        if context is not None:
            self._loop.add_signal_handler(RETIRE, self._retire)
            self._server.share_connections(context.share, context.process.number)
            _stop_with_supervisor(context.process, self._at_once)

    async def drain(self) -> None:
        """End the runs, within the time that they have, and then the streams."""
        # A retiring process was not asked to stop soon, so its runs get their whole time.
        grace_s = self._grace_s if self._retirement is None else max(self._grace_s, self._run_s)
        await self._app.worker.drain(grace_s, self._hurry)
        self._app.hub.stop()
        _exit_after_timeout()

    def _at_once(self) -> None:
        self._server.idle_drain_s = 0.0
        self._hurry.set()
        self.requested.set()

    def _gracefully(self) -> None:
        if self.requested.is_set():
            self._at_once()
        self.requested.set()

    def _with_others(self) -> None:
        # The supervisor sends SIGINT for a second signal, so a second SIGTERM here changes nothing.
        self.requested.set()
        if self._retirement is not None:
            self._loop.call_later(self._grace_s, self._hurry.set)

    def _retire(self) -> None:
        if self._retirement is None:
            self._retirement = self._loop.create_task(self._stop_without_connections())

    async def _stop_without_connections(self) -> None:
        await self._server.retire()
        self.requested.set()


def _exit_after_timeout() -> None:
    """Exit after a while even if something does not end, such as a node that blocks its thread, or a dead connection.

    By then the runs are handed back, and the database refuses what this process still writes for them.
    """

    def exit_now() -> None:
        log.warning("exiting although some work of this process has not ended", after_s=EXIT_TIMEOUT_S)
        os._exit(0)

    timer = threading.Timer(EXIT_TIMEOUT_S, exit_now)
    timer.daemon = True
    timer.start()


def _stop_with_supervisor(process: WorkerProcess, stop_at_once: Callable[[], None]) -> None:
    """Stop when the supervisor is gone: no other process would stop this one, or start it again."""
    loop = asyncio.get_running_loop()

    def on_gone() -> None:
        loop.remove_reader(process.supervisor_fd)
        log.warning("stopping: the supervisor of this process is gone")
        stop_at_once()

    loop.add_reader(process.supervisor_fd, on_gone)


def open_first_socket(settings: AgentSettings, sockets: Sockets) -> socket.socket:
    """Return the socket to serve first: the private one, or one that is bound to the configured address.

    Raises DependencyUnavailable when the port is not available.
    """
    if sockets.private_fd is None:
        return listen(settings.host, settings.port)
    inherited = socket.socket(fileno=sockets.private_fd)
    inherited.setblocking(False)
    return inherited


def _await_handover(server: Server, app: AgentApp, public_fd: int, pipe: int) -> None:
    loop = asyncio.get_running_loop()

    async def take_over() -> None:
        public = socket.socket(fileno=public_fd)
        public.setblocking(False)
        await server.add_socket(public)
        app.traffic.is_served = True
        log.info("answering on the deployment's address", address=str(public.getsockname()))

    def on_readable() -> None:
        loop.remove_reader(pipe)
        # The byte is not read, only counted: all processes of this replica look for it, also those that start later.
        if int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder):
            app.takeover = loop.create_task(take_over())
        os.close(pipe)

    loop.add_reader(pipe, on_readable)


def _await_heir(public_fd: int, heir_fd: int) -> None:
    # The server closes its own descriptor when it drains; the connections in the socket's backlog must outlive that.
    kept, heir = os.dup(public_fd), socket.socket(fileno=heir_fd)
    heir.setblocking(False)

    def on_readable() -> None:
        # Another replica may have accepted the connection, and the data plane may have closed it.
        with contextlib.suppress(OSError):
            requester, _address = heir.accept()
            with requester:
                socket.send_fds(requester, [b"1"], [kept, heir.fileno()])

    asyncio.get_running_loop().add_reader(heir.fileno(), on_readable)


class LogReports:
    """Collects log lines and sends them from a thread of its own."""

    def __init__(self, url: str, source: Mapping[str, Any], hidden: Sequence[str]) -> None:
        self._url, self._source = url, source
        # The longest first: a value may contain another one.
        values = sorted({value for value in hidden if len(value) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, values))) if values else None
        self._lines: deque[dict[str, Any]] = deque()
        self._dropped, self._is_failing = 0, False
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_sending, name="log-reports", daemon=True)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def close(self) -> None:
        """Send the remaining lines, within a bounded time, and stop."""
        self._closing.set()
        self._thread.join(REPORTS_CLOSE_WITHIN_S)

    def collect(self, event: Mapping[str, Any]) -> None:
        """Add a line of the log, or drop it if too many lines are waiting."""
        if len(self._lines) >= KEPT_LINES:
            self._drop(1)
            return
        with contextlib.suppress(Exception):
            self._lines.append(self._line_of(event))

    def _line_of(self, event: Mapping[str, Any]) -> dict[str, Any]:
        fields = [(name, value) for name, value in event.items() if name not in _NOT_FIELDS and name[:1] != "_"]
        return {
            "timestamp": str(event.get("timestamp", "")),
            "level": str(event.get("level", "info")),
            "message": self._redacted(event.get("event"), MAX_MESSAGE),
            "fields": {str(name)[:100]: self._redacted(value, MAX_FIELD) for name, value in fields[:MAX_FIELDS]},
            **({"exception": _raised(event["exc_info"])} if event.get("exc_info") else {}),
        }

    def _redacted(self, value: Any, length: int) -> str:
        # Redact before cutting: half a secret would not be found.
        text = _CREDENTIALS.sub(_HIDDEN, str(value))
        return (self._secrets.sub(_HIDDEN, text) if self._secrets else text)[:length]

    def _keep_sending(self) -> None:
        Supervision("reports of log lines").run_in_thread(self._run, self._closing)

    def _run(self) -> None:
        pause_s = REPORT_EVERY_S
        headers = {"User-Agent": f"portside/{__version__}"}
        with httpx.Client(verify=ssl_context(), timeout=REPORT_TIMEOUT_S, headers=headers) as client:
            while not self._closing.wait(pause_s):
                pause_s = REPORT_EVERY_S if self._send_all(client) else min(pause_s * 2, LONGEST_REPORT_PAUSE_S)
            self._send_all(client)

    def _send_all(self, client: "httpx.Client") -> bool:
        """Send reports until no line is left; return whether the address accepted all of them."""
        while lines := self._next_lines():
            dropped = self._dropped
            body = msgspec.json.encode({"source": self._source, "dropped": dropped, "logs": lines})
            reason = _refusal(client, self._url, body)
            if reason is not None:
                self._drop(len(lines))
                if not self._is_failing:
                    log.warning(
                        "log lines cannot be sent and are dropped", host=urlsplit(self._url).hostname, reason=reason
                    )
                self._is_failing = True
                return False
            self._is_failing = False
            FORWARDED_LINES.labels("sent").inc(len(lines))
            with self._lock:
                self._dropped -= dropped
        return True

    def _next_lines(self) -> list[msgspec.Raw]:
        """Remove and return the lines of the next report."""
        taken: list[msgspec.Raw] = []
        size = 0
        while self._lines and len(taken) < LINES_OF_REPORT and size < MAX_REPORT_BYTES:
            encoded = dump_api(self._lines.popleft())
            taken.append(msgspec.Raw(encoded))
            size += len(encoded)
        return taken

    def _drop(self, lines: int) -> None:
        FORWARDED_LINES.labels("dropped").inc(lines)
        with self._lock:
            self._dropped += lines


def _refusal(client: "httpx.Client", url: str, body: bytes) -> str | None:
    try:
        response = client.post(url, content=body, headers={"Content-Type": "application/json"})
    except httpx.HTTPError as exc:
        return type(exc).__name__
    return None if response.is_success else f"answered {response.status_code}"


def _raised(exc_info: Any) -> dict[str, Any]:
    exc = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    if not isinstance(exc, BaseException):
        exc = sys.exc_info()[1]
    if exc is None:
        return {"type": "unknown", "frames": []}
    frames = traceback.extract_tb(exc.__traceback__)[-FRAMES:]
    return {"type": type(exc).__name__, "frames": [f"{f.filename}:{f.lineno} in {f.name}" for f in frames]}


@contextlib.contextmanager
def forwarded_logs(settings: AgentSettings, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Forward the log of this process while the block runs, if configured. Raises UserMistake."""
    if not settings.self_hosted_logs_enabled:
        yield
        return
    reports = LogReports(_address(settings.self_hosted_logs_endpoint), _source(settings), secrets_of(environ))
    reports.start()
    try:
        with listen_to_logs(reports.collect):
            yield
    finally:
        reports.close()


def _address(given: str | None) -> str:
    parts = None
    with contextlib.suppress(ValueError):
        parts = urlsplit(given or "")
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UserMistake("SELF_HOSTED_LOGS_ENABLED needs an http or https URL in SELF_HOSTED_LOGS_ENDPOINT")
    return parts._replace(path=DEFAULT_REPORT_PATH if parts.path in {"", "/"} else parts.path).geturl()


def _source(settings: AgentSettings) -> dict[str, Any]:
    return {
        "kind": "agent_server",
        "version": __version__,
        "tier": settings.tier,
        "process_id": os.getpid(),
        "deployment_id": settings.deployment_id,
        "revision_id": settings.revision_id,
        "tenant_id": settings.tenant_id,
    }


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """Return the values that no report may contain: those of secret-like variables, list items, and URL passwords."""
    found: list[str] = []
    for name, value in environ.items():
        if any(word in name.lower() for word in _SECRET_NAMES):
            found += [value, *value.split(",")]
        with contextlib.suppress(ValueError):
            password = urlsplit(value).password or ""
            found += [password, unquote(password)]
    return found
