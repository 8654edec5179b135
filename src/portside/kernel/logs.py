"""Structured logs: one line for each event on standard error, as text or as JSON (LOG_JSON).

Modules get a logger from `get_logger(__name__)`. Request ids and similar fields are bound as context variables.
`listen_to_logs` passes every event to another consumer too. Control characters are escaped, because paths, names and
errors hold text that clients sent, and operators read the log in a terminal.
"""

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import structlog

from portside.kernel.escaping import escape_controls

SECRET_WORDS = ("secret", "password", "api_key", "authorization", "token")
Listener = Callable[[Mapping[str, Any]], None]
_LISTENERS: list[Listener] = []
# Not escaped as values: a traceback is formatted and escaped later, a stack keeps its lines, and the other two belong
# to the formatter of the standard library.
_NOT_VALUES = frozenset({"exc_info", "stack", "_record", "_from_structlog"})
# The lines that the processors and renderers write for a request whose path needs neither escapes nor quotes.
_TEXT_LINE = (
    f"{{at}} [info     ] {'request':<30} method={{method}} ms={{ms}} path={{path}} request_id={{id}} status={{status}}"
)
_JSON_LINE = (
    '{{"method": "{method}", "path": "{path}", "status": {status}, "ms": {ms}, "event": "request", '
    '"request_id": "{id}", "level": "info", "timestamp": "{at}"}}'
)
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/_.:~-]+")


def get_logger(name: str) -> Any:
    """Return a structured logger."""
    return structlog.get_logger(name)


def configure_logs(*, level: str = "INFO", as_json: bool = False) -> None:
    """Set the format and level for this process. The loggers of the standard library write to the same stream."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide_secrets,
        _escape_controls,
        _call_listeners,
    ]

    renderer = _json_renderer() if as_json else _console_renderer()
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_names: _Printer(sys.stderr),
        cache_logger_on_first_use=True,
    )

    template = None
    if as_json:
        template = _JSON_LINE
    elif not sys.stderr.isatty():
        template = _TEXT_LINE

    _requests.configure(level=number, template=template)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_add_fields, *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=max(number, logging.INFO), handlers=[handler], force=True)

    for chatty in ("httpx", "httpx2", "httpcore", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _add_fields(_logger: Any, _method: str, event: Any) -> Any:
    """Add the fields of an executor's log line, which logs without structlog: `extra={"fields": …}`."""
    fields = getattr(event["_record"], "fields", None)
    return {**event, **fields} if isinstance(fields, dict) else event


class _Printer(structlog.PrintLogger):
    """Prints log lines. It drops a line that it cannot write: a full disk must not stop the work that logs."""

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _RequestLines:
    """Writes the line of each request, the most frequent one, as the processors would, at a third of their cost."""

    def __init__(self) -> None:
        self._log = get_logger(__name__)
        self._is_on = True
        self._template: str | None = None
        self._printer: _Printer | None = None
        self._processors: Any = None

    def configure(self, *, level: int, template: str | None) -> None:
        """Write lines to the current standard error; with a template, if all processors are those of this module."""
        self._is_on = level <= logging.INFO
        self._template = template
        self._printer = _Printer(sys.stderr)
        self._processors = tuple(structlog.get_config()["processors"])

    def write(  # noqa: PLR0913 - the fields of a line
        self, method: str, path: str, status: int, *, ms: float, request_id: str, more: Mapping[str, Any]
    ) -> None:
        """Log a request, with `more` fields."""
        if not self._is_on:
            return

        template = self._template
        printer = self._printer
        has_listeners = _LISTENERS or tuple(structlog.get_config()["processors"]) != self._processors
        needs_processors = more or has_listeners or _PLAIN_PATH.fullmatch(path) is None
        if template is None or printer is None or needs_processors:
            self._log.info("request", method=method, path=path, status=status, ms=ms, **more)
            return

        at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        printer.msg(template.format(at=at, method=method, ms=ms, path=path, id=request_id, status=status))


_requests = _RequestLines()
log_request = _requests.write


@contextlib.contextmanager
def listen_to_logs(listener: Listener) -> Iterator[None]:
    """Call `listener` with every event of this process, in the thread that logs it, with its secrets hidden.

    The listener must be quick, must not keep or change the event, and must not raise.
    """
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


def _call_listeners(_logger: Any, _method: str, event: Any) -> Any:
    for listener in _LISTENERS:
        listener(event)
    return event


def _console_renderer() -> list[Any]:
    # The plain traceback: the pretty one prints local variables, which may hold secrets.
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    return [structlog.processors.format_exc_info, _escape_traceback, renderer]


def _json_renderer() -> list[Any]:
    return [structlog.processors.format_exc_info, _escape_traceback, structlog.processors.JSONRenderer()]


def _escape_controls(_logger: Any, _method: str, event: Any) -> Any:
    result = {escape_controls(key): value if key in _NOT_VALUES else _escape(value) for key, value in event.items()}
    stack = event.get("stack")
    if isinstance(stack, str):
        result["stack"] = _indent(stack)

    return result


def _escape(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, dict):
        return {escape_controls(str(key)): _escape(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escape(item) for item in value]

    return escape_controls(value if isinstance(value, str) else repr(value))


def _escape_traceback(_logger: Any, _method: str, event: Any) -> Any:
    text = event.get("exception")
    if isinstance(text, str):
        event["exception"] = _indent(text)

    return event


def _indent(text: str) -> str:
    """Escape a text of several lines and indent it, so that no line of it looks like a log line."""
    return "  " + escape_controls(text, keep_newlines=True).replace("\n", "\n  ")


def _hide_secrets(_logger: Any, _method: str, event: Any) -> Any:
    return _without_secrets(event)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "[hidden]" if _is_secret(key) else _without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]

    if isinstance(value, tuple):
        # Still a tuple: structlog does not recognize an `exc_info` that is a list.
        return tuple(_without_secrets(item) for item in value)

    return value


@lru_cache(4096)
def _is_secret(name: Any) -> bool:
    plain = str(name).lower().replace("-", "_")
    return any(word in plain for word in SECRET_WORDS)
