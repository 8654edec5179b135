"""Structured logs: one line per event on standard error, JSON where LOG_JSON says so.

Loggers are had by `get_logger(__name__)`; request ids and the like are bound as context variables. Whoever wants the
events beside that, to tell them elsewhere, overhears them.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import structlog

SECRET_WORDS = ("secret", "password", "api_key", "authorization", "token")
Listener = Callable[[Mapping[str, Any]], None]
_LISTENERS: list[Listener] = []


def get_logger(name: str) -> Any:
    """Return a structured logger."""
    return structlog.get_logger(name)


def configure_logs(*, level: str = "INFO", as_json: bool = False) -> None:
    """Set the format and level for this process; the standard library's loggers are led into the same stream."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide_secrets,
        _tell_listeners,
    ]
    renderer = _json_renderer() if as_json else [_console_renderer()]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=max(number, logging.INFO), handlers=[handler], force=True)
    for chatty in ("httpx", "httpx2", "httpcore", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


@contextlib.contextmanager
def overheard(listener: Listener) -> Iterator[None]:
    """Call `listener` with every event of this process, its secrets hidden, in whatever thread logs it.

    It must be quick, must not keep or change the event, and must not raise.
    """
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


def _tell_listeners(_logger: Any, _method: str, event: Any) -> Any:
    for listener in _LISTENERS:
        listener(event)
    return event


def _console_renderer() -> Any:
    # The plain traceback: the pretty one prints local variables, and secrets are among them.
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)


def _json_renderer() -> list[Any]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _hide_secrets(_logger: Any, _method: str, event: Any) -> Any:
    return _without_secrets(event)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "[hidden]" if _is_secret(key) else _without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return value


@lru_cache(4096)
def _is_secret(name: Any) -> bool:
    plain = str(name).lower().replace("-", "_")
    return any(word in plain for word in SECRET_WORDS)
