"""How `checkpoint_tuples` describes a value that is stored in pieces (`functions/checkpoint_tuples.sql`)."""

import struct
from collections.abc import Iterable

PIECE_SIZE = struct.Struct(">ii")
"""The bytes of a piece and its leaves, in the column `value_sizes`."""


def parse_ranges(ranges: str) -> list[tuple[int, int]]:
    """Return the series and the number of each piece, in order, from the column `value_pieces`."""
    numbers = [int(number) for number in ranges.strip("{}").split(",")]
    return [
        (numbers[at], number) for at in range(0, len(numbers), 3) for number in range(numbers[at + 1], numbers[at + 2])
    ]


def encode_array(numbers: Iterable[int]) -> str:
    """Return numbers as an array of Postgres."""
    return "{" + ",".join(map(str, numbers)) + "}"
