"""Conflicts of transactions: Postgres rolls one back because of another, and it can run again as it is."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from portside.kernel.logs import get_logger

log = get_logger(__name__)
T = TypeVar("T")
MAX_ATTEMPTS = 4
# The SQL states of a deadlock and of a serialization failure.
_STATES = frozenset({"40P01", "40001"})


def is_conflict(failure: BaseException) -> bool:
    """Whether Postgres rolled the transaction back because of another one."""
    return isinstance(failure, asyncpg.PostgresError) and failure.sqlstate in _STATES


async def retry_conflicts(attempt: Callable[[], Awaitable[T]]) -> T:
    """Run a whole transaction, and again while it conflicts with another one, `MAX_ATTEMPTS` times in all.

    Raises the last conflict.
    """
    for number in range(1, MAX_ATTEMPTS):
        try:
            return await attempt()
        except asyncpg.PostgresError as exc:
            if not is_conflict(exc):
                raise
            log.warning("a transaction conflicted with another one and runs again", attempt=number, error=str(exc))
        # Wait for a random time, so that the two do not conflict again.
        await asyncio.sleep(random.uniform(0, 0.02) * number)  # noqa: S311 - no secret
    return await attempt()
