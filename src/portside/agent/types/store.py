"""Items of the store and the searches among them (contract: section 8)."""

from typing import Annotated, Any

import msgspec

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]
# A hundred years: what is to be kept longer has no end.
MAX_TTL_MINUTES = 52_560_000
Namespace = Annotated[list[str], msgspec.Meta(max_length=32)]


class ItemPut(msgspec.Struct):
    """An item to store. `ttl` is in minutes; `index` names the fields to embed, or is false for none."""

    namespace: Namespace
    key: str
    value: dict[str, Any]
    index: bool | Annotated[list[str], msgspec.Meta(max_length=100)] | None = None
    ttl: Annotated[float, msgspec.Meta(gt=0, le=MAX_TTL_MINUTES)] | None = None


class ItemQuery(msgspec.Struct):
    """Which item to read; the labels of its namespace are joined by periods."""

    namespace: Annotated[str, msgspec.Meta(min_length=1)]
    key: str | None = None
    refresh_ttl: bool | None = None


class ItemDelete(msgspec.Struct):
    """Which item to delete."""

    key: str
    namespace: Namespace | None = None


class ItemSearch(msgspec.Struct):
    """What to look for under a namespace: values that fit a filter, or by meaning, or both."""

    namespace_prefix: Namespace | None = None
    filter: dict[str, Any] | None = None
    limit: Limit | None = None
    offset: Offset | None = None
    query: Annotated[str, msgspec.Meta(max_length=100_000)] | None = None
    refresh_ttl: bool | None = None


class NamespaceSearch(msgspec.Struct):
    """Which namespaces to list; `*` stands for any label."""

    prefix: Namespace | None = None
    suffix: Namespace | None = None
    max_depth: Annotated[int, msgspec.Meta(ge=1, le=2_147_483_647)] | None = None
    limit: Limit | None = None
    offset: Offset | None = None


class StoredItem(msgspec.Struct):
    """An item as the API shows it."""

    namespace: list[str]
    key: str
    value: msgspec.Raw
    created_at: str
    updated_at: str


class FoundItem(StoredItem):
    """An item that a search found; `score` is how close it is in meaning, 1 at most, where that was asked for."""

    score: float | None


class FoundItems(msgspec.Struct):
    """The page of items that a search found."""

    items: list[FoundItem]


class Namespaces(msgspec.Struct):
    """The namespaces that there are."""

    namespaces: list[list[str]]
