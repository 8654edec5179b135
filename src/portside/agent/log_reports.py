"""Forwards the log lines of an agent server to another address (settings SELF_HOSTED_LOGS_*).

These settings and the routes are documented for LangGraph's agent server, but no payload is; this one is ours. A thread
sends the collected lines once a second. Code that logs never waits: lines that do not fit into memory or cannot be sent
are dropped, and the next report counts them. A report contains no secrets: beside what the log itself hides, it has
neither values of variables with secret-like names nor credentials of URLs, and of an exception only its class and where
it was raised.
"""

import contextlib
import os
import re
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import msgspec
from prometheus_client import Counter

from portside import __version__
from portside.agent.settings import AgentSettings
from portside.kernel.codec import dump_api
from portside.kernel.errors import UserMistake
from portside.kernel.logs import SECRET_WORDS, get_logger, listen_to_logs
from portside.kernel.outbound import get_ssl_context
from portside.kernel.supervision import Supervision

log = get_logger(__name__)
FORWARDED_LINES = Counter(
    "portside_log_lines_forwarded_total", "Log lines that were sent to another address, or dropped.", ["outcome"]
)
DEFAULT_REPORT_PATH = "/v1/metadata/submit"
REPORT_EVERY_S = 1.0
REPORT_TIMEOUT_S = 5.0
LONGEST_REPORT_PAUSE_S = 60.0
REPORTS_CLOSE_WITHIN_S = 2.0
# Of the lines that wait; further ones are dropped.
KEPT_LINES = 5_000
LINES_OF_REPORT = 200
# Of a traceback, the innermost.
FRAMES = 20
MAX_MESSAGE_CHARS = 2_000
MAX_FIELD_CHARS = 300
MAX_FIELDS = 20
# The platform's route accepts 256 KB.
MAX_REPORT_BYTES = 200_000
_HIDDEN = "[hidden]"
_CREDENTIALS = re.compile(r"(?<=://)[^\s/@]+(?=@)")
_SECRET_NAMES = (*SECRET_WORDS, "key", "credential", "dsn")
# Shorter values, such as `true`, would hide parts of ordinary words.
_SHORTEST_SECRET = 6
_NOT_FIELDS = frozenset({"event", "level", "timestamp", "exc_info", "stack_info", "logger"})


class LogReports:
    """Collects log lines and sends them from a thread of its own."""

    def __init__(self, url: str, source: Mapping[str, Any], hidden: Sequence[str]) -> None:
        self._url = url
        self._source = source

        # The longest first: a value may contain another one.
        values = sorted({value for value in hidden if len(value) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, values))) if values else None
        self._lines: deque[dict[str, Any]] = deque()
        self._dropped = 0
        self._is_failing = False
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
            self._lines.append(self._to_line(event))

    def _to_line(self, event: Mapping[str, Any]) -> dict[str, Any]:
        fields = [(name, value) for name, value in event.items() if name not in _NOT_FIELDS and name[:1] != "_"]
        line = {
            "timestamp": str(event.get("timestamp", "")),
            "level": str(event.get("level", "info")),
            "message": self._redact(event.get("event"), MAX_MESSAGE_CHARS),
            "fields": {str(name)[:100]: self._redact(value, MAX_FIELD_CHARS) for name, value in fields[:MAX_FIELDS]},
        }
        if event.get("exc_info"):
            line["exception"] = _describe_exception(event["exc_info"])

        return line

    def _redact(self, value: Any, length: int) -> str:
        # Redact before cutting: half a secret would not be found.
        text = _CREDENTIALS.sub(_HIDDEN, str(value))
        if self._secrets is not None:
            text = self._secrets.sub(_HIDDEN, text)

        return text[:length]

    def _keep_sending(self) -> None:
        Supervision("reports of log lines").run_in_thread(self._run, self._closing)

    def _run(self) -> None:
        pause_s = REPORT_EVERY_S
        headers = {"User-Agent": f"portside/{__version__}"}
        with httpx.Client(verify=get_ssl_context(), timeout=REPORT_TIMEOUT_S, headers=headers) as client:
            while not self._closing.wait(pause_s):
                pause_s = REPORT_EVERY_S if self._send_all(client) else min(pause_s * 2, LONGEST_REPORT_PAUSE_S)
            self._send_all(client)

    def _send_all(self, client: "httpx.Client") -> bool:
        """Send reports until no line is left; return whether the address accepted all of them."""
        while lines := self._take_lines():
            dropped = self._dropped
            body = msgspec.json.encode({"source": self._source, "dropped": dropped, "logs": lines})

            reason = _send_report(client, self._url, body)
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

    def _take_lines(self) -> list[msgspec.Raw]:
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


def _send_report(client: "httpx.Client", url: str, body: bytes) -> str | None:
    try:
        response = client.post(url, content=body, headers={"Content-Type": "application/json"})
    except httpx.HTTPError as exc:
        return type(exc).__name__

    return None if response.is_success else f"answered {response.status_code}"


def _describe_exception(exc_info: Any) -> dict[str, Any]:
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

    reports = LogReports(
        _parse_address(settings.self_hosted_logs_endpoint), _describe_source(settings), list_secrets(environ)
    )
    reports.start()
    try:
        with listen_to_logs(reports.collect):
            yield
    finally:
        reports.close()


def _parse_address(endpoint: str | None) -> str:
    parts = None
    with contextlib.suppress(ValueError):
        parts = urlsplit(endpoint or "")

    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UserMistake("SELF_HOSTED_LOGS_ENABLED needs an http or https URL in SELF_HOSTED_LOGS_ENDPOINT")

    if parts.path in {"", "/"}:
        parts = parts._replace(path=DEFAULT_REPORT_PATH)

    return parts.geturl()


def _describe_source(settings: AgentSettings) -> dict[str, Any]:
    return {
        "kind": "agent_server",
        "version": __version__,
        "tier": settings.tier,
        "process_id": os.getpid(),
        "deployment_id": settings.deployment_id,
        "revision_id": settings.revision_id,
        "tenant_id": settings.tenant_id,
    }


def list_secrets(environ: Mapping[str, str]) -> list[str]:
    """Return the values that no report may contain: those of secret-like variables, list items, and URL passwords."""
    secrets: list[str] = []

    for name, value in environ.items():
        if any(word in name.lower() for word in _SECRET_NAMES):
            secrets += [value, *value.split(",")]

        with contextlib.suppress(ValueError):
            password = urlsplit(value).password or ""
            secrets += [password, unquote(password)]

    return secrets
