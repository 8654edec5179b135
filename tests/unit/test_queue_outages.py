"""Which failures give a run back to the queue instead of ending it."""

import asyncpg
import pytest

from portside.kernel.outages import is_outage


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        asyncpg.CannotConnectNowError("the database system is starting up"),
        asyncpg.DiskFullError("could not extend file"),
    ],
)
def test_a_database_that_goes_away_is_not_the_runs_fault(failure):
    assert is_outage(failure)


@pytest.mark.parametrize(
    "failure",
    [ValueError("the graph's own"), asyncpg.QueryCanceledError("statement timeout"), asyncpg.DataError("bad")],
)
def test_what_fails_again_the_next_time_is(failure):
    assert not is_outage(failure)
