"""Items of the store and the searches among them."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from portside.kernel.http.json_validation import NOT_TRUE

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]
# A hundred years; an item without a ttl is kept without limit.
MAX_TTL_MINUTES = 52_560_000
# `agent/store/` refuses other labels, with errors that clients know; the pattern is only for the OpenAPI document.
Label = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": r"^[^.\u0000]+$"})]
Namespace = Annotated[list[Label], msgspec.Meta(max_length=32)]
ItemNamespace = Annotated[list[Label], msgspec.Meta(max_length=32, extra_json_schema={"minItems": 1})]


class ItemPut(msgspec.Struct):
    """An item to store. `ttl` is in minutes; `index` names the fields to embed, or is false for none."""

    namespace: ItemNamespace
    key: str
    value: dict[str, Any]
    index: Annotated[bool, NOT_TRUE] | Annotated[list[str], msgspec.Meta(max_length=100)] | None = None
    ttl: Annotated[float, msgspec.Meta(gt=0, le=MAX_TTL_MINUTES)] | None = None


class ItemQuery(msgspec.Struct):
    """The item to read; the labels of its namespace are joined by periods."""

    namespace: Annotated[
        str, msgspec.Meta(min_length=1, extra_json_schema={"pattern": r"^[^.\u0000]+(\.[^.\u0000]+)*$"})
    ]
    key: str | None = None
    refresh_ttl: bool | None = None


class ItemDelete(msgspec.Struct, forbid_unknown_fields=True):
    """The item to delete."""

    key: str
    namespace: Namespace | None = None


class ItemSearch(msgspec.Struct):
    """A search under a namespace: values that match a filter, by meaning, or both."""

    namespace_prefix: Namespace | None = None
    filter: dict[str, Any] | None = None
    limit: Limit | None = None
    offset: Offset | None = None
    query: Annotated[str, msgspec.Meta(max_length=100_000)] | None = None
    refresh_ttl: bool | None = None


class NamespaceSearch(msgspec.Struct):
    """The namespaces to list; `*` matches any label."""

    prefix: Namespace | None = None
    suffix: Namespace | None = None
    max_depth: Annotated[int, msgspec.Meta(ge=1, le=2_147_483_647)] | None = None
    limit: Limit | None = None
    offset: Offset | None = None


class StoredItem(msgspec.Struct):
    """An item in the API. `ttl`, in minutes, and `expires_at` are extensions, which items without a lifetime lack."""

    namespace: list[str]
    key: str
    value: msgspec.Raw
    created_at: str
    updated_at: str
    ttl: float | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET


class FoundItem(StoredItem, kw_only=True):
    """An item that a search found; `score` is its similarity, at most 1, for a search by meaning."""

    score: float | None


class FoundItems(msgspec.Struct):
    """The page of items that a search found."""

    items: list[FoundItem]


class Namespaces(msgspec.Struct):
    """A page of namespaces."""

    namespaces: list[list[str]]
