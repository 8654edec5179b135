"""From database rows to the structs of the API."""

from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

import msgspec

from portside.kernel.clock import iso
from portside.kernel.db import Record

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


def from_row(kind: type[S], row: Record) -> S:
    """Return a struct made of the columns that it has fields for; times become ISO strings, `values` stays raw JSON."""
    values = {}
    for name in kind.__struct_fields__:
        value = row[name]
        if isinstance(value, datetime):
            value = iso(value)
        elif name == "values" and value is not None:
            value = msgspec.Raw(value.encode())

        values[name] = value

    return kind(**values)


class SearchPage(NamedTuple, Generic[T]):
    """The rows of one page, and how many rows match in all."""

    items: list[T]
    total: int
