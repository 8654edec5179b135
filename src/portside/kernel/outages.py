"""Which failures are the database's own: it is away, full or refuses writes for now; the run can do nothing for it."""

import asyncpg

_PASSING = (
    OSError,
    asyncpg.InterfaceError,
    # What the driver says of a connection that broke while it was at it, and of a server that is still starting.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.TransactionRollbackError,
)


def is_outage(failure: BaseException) -> bool:
    """Whether the same may well succeed a little later. A statement that took too long is not one of these."""
    return isinstance(failure, _PASSING) and not isinstance(failure, asyncpg.QueryCanceledError)
