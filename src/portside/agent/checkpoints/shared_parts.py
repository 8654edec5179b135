"""Parts that the rows of a batch have in common, which are stored once.

A message is in the input of its run, in the pending write of the task that returned it, and in the list that it was
appended to. Their encodings differ in the message's id, or by the list around it.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from portside.executor.checkpoints.backend import (
    PIECE_COLUMNS,
    VALUE_COLUMNS,
    WRITE_COLUMNS,
    Row,
    Rows,
)
from portside.executor.checkpoints.stored_pieces import encode_array

# Shorter parts are not shared: naming the piece takes 64 bytes itself.
MIN_BYTES = 128
# A part is found by a sample of this size, and this many samples of a value are searched for.
SAMPLE_BYTES = 32
SAMPLES = 16
# More pieces than this are not searched: each sample takes up to a microsecond for each four kilobytes of them.
MAX_SEARCHED_BYTES = 256_000
_PIECE_DATA = PIECE_COLUMNS.index("p_data")


class _Pieces(NamedTuple):
    """The pieces of one thread in a batch, with the position of each in their joined bytes."""

    rows: Sequence[Row]
    ends: Sequence[int]
    data: bytes

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Pieces":
        """Join the bytes of pieces."""
        datas = [row[_PIECE_DATA] for row in rows]
        return cls(rows, list(accumulate(map(len, datas))), b"".join(datas))


def share_parts(rows: Rows) -> None:
    """Replace the values and writes of a batch that have parts in common with its pieces.

    The parts that are in a piece of the same batch are left out: Postgres reads them from the piece
    (`functions/checkpoint_tuples.sql`). Nothing is shared with what was written before, so nothing has to be read for
    it.
    """
    pieces_by_thread: dict[str, list[Row]] = defaultdict(list)
    for row in rows.pieces.values():
        pieces_by_thread[row[0]].append(row)

    for thread_id, piece_rows in pieces_by_thread.items():
        pieces = _Pieces.of(piece_rows)
        if len(pieces.data) > MAX_SEARCHED_BYTES:
            continue

        for table, names, prefix in ((rows.values, VALUE_COLUMNS, "v_"), (rows.writes, WRITE_COLUMNS, "w_")):
            data_at = names.index(f"{prefix}data")
            shared_at = names.index(f"{prefix}shared")
            for key, row in table.items():
                if row[0] != thread_id or len(row[data_at]) < MIN_BYTES:
                    continue

                data, shared = _cut_parts(row[data_at], pieces)
                if shared:
                    replaced = list(row)
                    replaced[data_at] = data
                    replaced[shared_at] = encode_array(shared)
                    table[key] = tuple(replaced)


def _cut_parts(data: bytes, pieces: _Pieces) -> tuple[bytes, list[int]]:
    """Return data without the parts that pieces have, and five numbers for each part.

    They are the part's position in the remaining data, the series and the number of the piece, and the part's position
    in the piece and its length.
    """
    remaining: list[bytes] = []
    remaining_size = 0
    shared: list[int] = []

    # Everything before `end` remains, or is a part of a piece.
    end = 0
    step = max(MIN_BYTES - SAMPLE_BYTES, len(data) // SAMPLES)
    at = step // 2
    while at + SAMPLE_BYTES <= len(data):
        position = pieces.data.find(data[at : at + SAMPLE_BYTES])
        if position < 0:
            at += step
            continue

        index = bisect_right(pieces.ends, position)
        piece = pieces.rows[index]
        piece_data = piece[_PIECE_DATA]
        inside = position - (pieces.ends[index] - len(piece_data))

        before = _count_common(data[end:at][::-1], piece_data[:inside][::-1])
        length = before + _count_common(data[at:], piece_data[inside:])
        if length < MIN_BYTES:
            at += step
            continue

        start = at - before
        remaining.append(data[end:start])
        remaining_size += start - end
        shared += (remaining_size, piece[1], piece[2], inside - before, length)
        end = start + length
        at = max(at, end)

    remaining.append(data[end:])
    return b"".join(remaining), shared


def _count_common(first: bytes, second: bytes) -> int:
    """Return how many bytes two strings have in common at their beginning, by bisection, as slices compare fast."""
    least = 0
    most = min(len(first), len(second))
    while least < most:
        middle = (least + most + 1) // 2
        if first[least:middle] == second[least:middle]:
            least = middle
        else:
            most = middle - 1

    return least
