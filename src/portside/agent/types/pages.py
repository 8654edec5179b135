"""One page of a search."""

from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Page(NamedTuple, Generic[T]):
    """The rows of one page, and how many rows match in all."""

    items: list[T]
    total: int
