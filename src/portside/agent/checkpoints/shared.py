"""Stores once what both a task's write and the next checkpoint have.

A message is in the input of its run, in the pending write of the task that returned it, and in the list that it was
appended to. Their encodings differ in the message's id, or by the list around it. `share_parts` finds the parts of
values and writes that are in a piece of the same batch, and leaves them out: Postgres reads them from the piece
(`functions/checkpoint_tuples.sql`). Nothing is shared with what was written before, so nothing has to be read for it.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from portside.executor.checkpoints.backend import PIECE_COLUMNS, VALUE_COLUMNS, WRITE_COLUMNS, Row, Rows
from portside.executor.checkpoints.stored_pieces import array_text

# A shorter part is stored again: naming its piece takes 64 bytes.
MIN_BYTES = 128
# A part is noticed by a sample of this size, and this many samples of a value are searched for.
SAMPLE_BYTES = 32
SAMPLES = 16
# More than this is not searched: a sample takes up to a microsecond for each four kilobytes.
MAX_SEARCHED_BYTES = 256_000
_PIECE = PIECE_COLUMNS.index("p_data")


class _Pieces(NamedTuple):
    """The pieces of one thread in a batch, with the position of each in their joined bytes."""

    rows: Sequence[Row]
    ends: Sequence[int]
    data: bytes

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Pieces":
        """Join the bytes of pieces."""
        datas = [row[_PIECE] for row in rows]
        return cls(rows, list(accumulate(map(len, datas))), b"".join(datas))


def share_parts(rows: Rows) -> None:
    """Replace the values and writes of a batch that have parts in common with its pieces."""
    by_thread: dict[str, list[Row]] = defaultdict(list)
    for row in rows.pieces.values():
        by_thread[row[0]].append(row)
    for thread_id, of_thread in by_thread.items():
        pieces = _Pieces.of(of_thread)
        if len(pieces.data) > MAX_SEARCHED_BYTES:
            continue
        for table, names, prefix in ((rows.values, VALUE_COLUMNS, "v_"), (rows.writes, WRITE_COLUMNS, "w_")):
            data_at, shared_at = names.index(f"{prefix}data"), names.index(f"{prefix}shared")
            for key, row in table.items():
                if row[0] != thread_id or len(row[data_at]) < MIN_BYTES:
                    continue
                data, shared = _without_parts(row[data_at], pieces)
                if shared:
                    replaced = list(row)
                    replaced[data_at], replaced[shared_at] = data, array_text(shared)
                    table[key] = tuple(replaced)


def _without_parts(data: bytes, pieces: _Pieces) -> tuple[bytes, list[int]]:
    """Return data without the parts that pieces have, and five numbers for each part."""
    kept: list[bytes] = []
    shared: list[int] = []
    done = own = 0
    step = max(MIN_BYTES - SAMPLE_BYTES, len(data) // SAMPLES)
    at = step // 2
    while at + SAMPLE_BYTES <= len(data):
        found = pieces.data.find(data[at : at + SAMPLE_BYTES])
        if found < 0:
            at += step
            continue
        index = next(index for index, end in enumerate(pieces.ends) if end > found)
        piece = pieces.rows[index]
        bytes_of_piece, inside = piece[_PIECE], found - (pieces.ends[index] - len(piece[_PIECE]))
        before = _common(data[done:at][::-1], bytes_of_piece[:inside][::-1])
        length = before + _common(data[at:], bytes_of_piece[inside:])
        if length >= MIN_BYTES:
            own += at - before - done
            kept.append(data[done : at - before])
            done = at - before + length
            shared += (own, piece[1], piece[2], inside - before, length)
            at = max(at, done)
        else:
            at += step
    kept.append(data[done:])
    return b"".join(kept), shared


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes two strings have in common at their beginning."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
