"""Transient failures: they return a run to the queue, clients may retry, and the log counts repetitions."""

import errno
from functools import partial

import asyncpg
import pytest
import structlog

from portside.kernel.http.error_responses import to_error
from portside.kernel.transient_errors import OutageLog, is_retryable, is_transient
from tests.conftest import eventually


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        asyncpg.CannotConnectNowError("the database system is starting up"),
        asyncpg.DiskFullError("could not extend file"),
        asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction"),
    ],
)
def test_lost_database_is_transient(failure):
    assert is_transient(failure)


@pytest.mark.parametrize(
    "failure",
    [ValueError("the graph's own"), asyncpg.QueryCanceledError("statement timeout"), asyncpg.DataError("bad")],
)
def test_permanent_failures_are_not_transient(failure):
    assert not is_transient(failure)


@pytest.mark.parametrize(
    ("failure", "may_retry"),
    [
        (ConnectionRefusedError(111, "refused"), True),
        (TimeoutError(), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.ENFILE, "Too many open files in system"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), True),
        (asyncpg.DiskFullError("could not extend file"), True),
        (FileNotFoundError(errno.ENOENT, "a file of ours"), False),
        (PermissionError(errno.EACCES, "a file of ours"), False),
        (KeyError("a bug"), False),
    ],
)
def test_only_retryable_failures_get_503(failure: Exception, *, may_retry: bool):
    assert is_retryable(failure) is may_retry
    error = to_error(failure, "/threads")
    assert (error.status == 503) is may_retry
    assert ("Retry-After" in error.headers) is may_retry


async def test_repeated_failures_are_counted_and_logged_once():
    """Three bursts of two kinds: the counts include every failure, in a few lines."""
    outages = OutageLog(every_s=0.2)
    with structlog.testing.capture_logs() as lines:

        async def are_counted(times: int) -> bool:
            return sum(line["times"] for line in lines) == times

        for burst in range(1, 4):
            for _ in range(500):
                outages.add("request failed", asyncpg.CannotConnectNowError("starting up"), path="/a")
                outages.add("request failed", asyncpg.DiskFullError("no space"), path="/b")

            await eventually(partial(are_counted, burst * 1000))

    assert {line["error"] for line in lines} == {"CannotConnectNowError: starting up", "DiskFullError: no space"}
    assert len(lines) < 100, "3,000 failures: of each burst and kind one line immediately, and one for the rest"
    assert {line["event"] for line in lines} == {"request failed"}
