"""The interface to the storage of the rows of checkpoints: the database of this process, or the server behind a link.

It knows rows as plain data: a server without the libraries of graphs imports it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class CheckpointRow(NamedTuple):
    """The columns of a checkpoint without its long values."""

    c_thread: str
    c_ns: str
    c_id: str
    c_parent: str | None
    """The checkpoint before it."""
    c_metadata: str
    """JSON."""
    c_kind: str
    """How the body is encoded."""
    c_body: bytes
    c_channels: str
    """The channels whose values have rows of their own, as an array of Postgres."""
    c_versions: str
    """The versions of those values, as an array of Postgres."""


class ValueRow(NamedTuple):
    """The columns of a version of a channel's value: whole, or a header and ranges of pieces."""

    v_thread: str
    v_ns: str
    v_channel: str
    v_version: str
    v_kind: str
    v_data: bytes
    v_pieces: str | None
    """Series, first and last number of each range of pieces, as an array of Postgres."""
    v_shared: str | None
    """Parts that the server shares when it stores them; an executor sends none."""


class PieceRow(NamedTuple):
    """The columns of a piece of values, which many versions share."""

    p_thread: str
    p_series: int
    p_number: int
    p_leaves: int
    """How many items the piece has."""
    p_data: bytes


class WriteRow(NamedTuple):
    """The columns of what a task wrote to a channel."""

    w_thread: str
    w_ns: str
    w_checkpoint: str
    w_task: str
    w_idx: int
    w_path: str
    w_run: str | None
    w_channel: str
    w_kind: str
    w_data: bytes
    w_pieces: str | None
    w_shared: str | None


CHECKPOINT_COLUMNS = CheckpointRow._fields
VALUE_COLUMNS = ValueRow._fields
PIECE_COLUMNS = PieceRow._fields
WRITE_COLUMNS = WriteRow._fields
_WRITE_INDEX = WRITE_COLUMNS.index("w_idx")
Row = tuple[Any, ...]


def complete_row(row: Row) -> Row:
    """Return a row with the results of its functions: they encode columns only when the row is stored."""
    return tuple([part() if callable(part) else part for part in row])


@dataclass(slots=True, eq=False)
class Rows:
    """Rows of the four tables by their keys, for the query `write_checkpoints`.

    A checkpoint may hold functions in place of columns, see `completed`.
    """

    checkpoints: dict[Row, Row] = field(default_factory=dict)
    values: dict[Row, Row] = field(default_factory=dict)
    pieces: dict[Row, Row] = field(default_factory=dict)
    writes: dict[Row, Row] = field(default_factory=dict)
    size: int = 0
    is_encrypted: bool = False

    def __bool__(self) -> bool:
        return bool(self.checkpoints or self.values or self.writes)

    def merge(self, other: "Rows") -> None:
        """Add rows as the tables do on conflict: values and ordinary writes keep the first row, others the last."""
        self.checkpoints |= other.checkpoints
        self.values = other.values | self.values
        self.pieces |= other.pieces

        for key, row in other.writes.items():
            if row[_WRITE_INDEX] < 0:
                self.writes[key] = row
            else:
                self.writes.setdefault(key, row)

        self.size += other.size
        self.is_encrypted = self.is_encrypted or other.is_encrypted

    def columns(self) -> dict[str, list[Any] | None]:
        """Return one list for each column, or None if it has no value. Raises ValueError for metadata without JSON."""
        columns_by_name: dict[str, list[Any] | None] = {}
        for names, rows in (
            (CHECKPOINT_COLUMNS, [complete_row(row) for row in self.checkpoints.values()]),
            (VALUE_COLUMNS, self.values.values()),
            (PIECE_COLUMNS, self.pieces.values()),
            (WRITE_COLUMNS, self.writes.values()),
        ):
            # The driver encodes each item of a list; null in place of a list without values saves that.
            columns = zip(*rows, strict=True) if rows else ((),) * len(names)
            for name, column in zip(names, columns, strict=True):
                columns_by_name[name] = list(column) if any(value is not None for value in column) else None

        return columns_by_name


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
        """Store rows. `run` is the id and the attempt of the run that wrote them, or None.

        With `is_awaited` it returns when they are stored. Otherwise they are stored by the end of the run, unless its
        thread is deleted with it. Raises the error of an earlier write, and LeaseLost if the attempt has lost its run.
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
