"""The interface to what stores the rows of checkpoints: the database of this process, or the server behind a link."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from portside.executor.checkpoints.rows import Rows


class CheckpointQuery(NamedTuple):
    """The checkpoints to list, newest first, and the one that the last page ended with."""

    thread_id: str | None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    before: str | None = None
    """The id of a checkpoint; only older ones are listed."""
    filter: str | None = None
    """JSON that the metadata has to contain."""
    after_id: str | None = None
    after_thread: str | None = None
    after_ns: str | None = None
    page_size: int = 100


class CheckpointBackend(Protocol):
    """Stores rows of checkpoints. Its methods may be called on any event loop.

    A row that is read is a mapping with the columns of the view `checkpoint_tuples`.
    """

    is_encrypted: bool
    """Whether what is stored is encrypted, so that a thread cannot refer to values of its checkpoints."""

    async def put(
        self, thread_id: str, checkpoint_ns: str, rows: Rows, *, run: tuple[str, int] | None, is_awaited: bool
    ) -> None:
        """Store rows of a run, named by its id and the number of the attempt, or of nobody.

        `is_awaited`: return only when they are stored. Otherwise they are by the end of the run, unless its thread is
        deleted with it. Raises what an earlier write failed with, and LeaseLost if the attempt has lost its run.
        """
        ...

    async def read(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> Any:
        """Return the row of a checkpoint, the latest of its namespace without an id, or None."""
        ...

    async def list(self, query: CheckpointQuery) -> Sequence[Any]:
        """Return the rows of a page of checkpoints."""
        ...

    async def delete_threads(self, thread_ids: Sequence[str]) -> None:
        """Delete all checkpoints of threads."""
        ...

    async def delete_runs(self, run_ids: Sequence[str], thread_id: str | None) -> None:
        """Delete the checkpoints of runs, on one thread or on all."""
        ...

    async def keep_latest(self, thread_ids: Sequence[str]) -> None:
        """Delete all checkpoints of threads but the latest of each namespace."""
        ...

    async def copy_thread(self, source: str, target: str) -> None:
        """Copy the history of a thread to one without checkpoints."""
        ...
