"""Transient failures: the database is unreachable, starting, full or out of connections, or the machine has no
descriptor, memory or disk space left.

An outage fails every request at once, so its failures are logged together: one line for each kind in each second.
"""

import contextlib
import errno
import logging
import threading
import time
from typing import Any

import asyncpg
import msgspec

from portside.kernel.logs import get_logger

log = get_logger(__name__)
LINE_EVERY_S = 1.0
_TRANSIENT = (
    OSError,
    asyncpg.InterfaceError,
    # The driver raises it when a connection breaks during a statement, and when a server is still starting.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.TransactionRollbackError,
)
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})


class DatabaseUnreachable(ConnectionError):
    """No connection to the database can be opened."""


def is_transient(failure: BaseException) -> bool:
    """Whether a second attempt may succeed a little later. A statement that timed out is not transient."""
    return isinstance(failure, _TRANSIENT) and not isinstance(failure, asyncpg.QueryCanceledError)


def is_retryable(failure: BaseException) -> bool:
    """Whether a client should send its request again a little later.

    Unlike with `is_transient`, errors of the file system count only if the machine ran out of space, memory or
    descriptors: a missing file stays missing.
    """
    if isinstance(failure, OSError) and not isinstance(failure, ConnectionError | TimeoutError):
        return failure.errno in _EXHAUSTED
    return is_transient(failure)


class _Line(msgspec.Struct):
    """The last line of one kind of failure, and how often the kind has happened since it was written."""

    written_at: float
    fields: dict[str, Any]
    times: int = 0


class OutageLog:
    """Writes at most one line for each kind of failure in each second, with how often it has happened."""

    def __init__(self, every_s: float = LINE_EVERY_S) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, str], _Line] = {}

    def add(self, event: str, failure: BaseException, **fields: Any) -> None:
        """Log a failure: the first of its kind at once, the following ones with the next line of their kind."""
        kind = (event, type(failure).__name__)
        fields = {"error": f"{type(failure).__name__}: {failure}", **fields}
        with self._lock:
            line = self._lines.get(kind)
            if line is not None and time.monotonic() - line.written_at < self._every_s:
                line.times = line.times + 1
                line.fields = fields
                if line.times == 1:
                    self._write_later(kind)

                return

            missed = 0 if line is None else line.times
            self._lines[kind] = _Line(time.monotonic(), fields)

        log.error(event, times=missed + 1, **fields)

    def _write_later(self, kind: tuple[str, str]) -> None:
        timer = threading.Timer(self._every_s, self._write, (kind,))
        timer.daemon = True

        # If no thread can be started, the next failure of this kind writes the count.
        with contextlib.suppress(RuntimeError):
            timer.start()

    def _write(self, kind: tuple[str, str]) -> None:
        with self._lock:
            line = self._lines[kind]
            if time.monotonic() - line.written_at < self._every_s * 0.9:
                return  # A newer line was written in the meantime; the failures after it have their own timer.

            times = line.times
            line.times = 0
            line.written_at = time.monotonic()

        if times:
            log.error(kind[0], times=times, **line.fields)


_outages = OutageLog()


def log_failure(event: str, failure: BaseException, **fields: Any) -> None:
    """Log a failure with its traceback; one of an outage in one line, together with those of the same second."""
    if is_retryable(failure):
        _outages.add(event, failure, **fields)
    else:
        log.error(event, exc_info=failure, **fields)


def join_library_outages(logger: str) -> None:
    """Join the outages that a library logs with its own logger, as `log_failure` does."""
    # A logger adds the same filter only once.
    logging.getLogger(logger).addFilter(_is_no_outage)


def _is_no_outage(record: logging.LogRecord) -> bool:
    failure = record.exc_info[1] if record.exc_info else None
    if failure is None or not is_retryable(failure):
        return True

    log_failure(record.getMessage().strip(), failure, logger=record.name)
    return False
