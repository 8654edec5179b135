"""The store over HTTP: requests become operations, and errors name the field of the request."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from portside.agent.store.items import Items
from portside.agent.store.names import check_key, check_namespace
from portside.agent.store.operations import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from portside.agent.types.store import (
    FoundItem,
    FoundItems,
    ItemDelete,
    ItemPut,
    ItemQuery,
    ItemSearch,
    Namespaces,
    NamespaceSearch,
    StoredItem,
)
from portside.kernel.clock import iso
from portside.kernel.db import Record
from portside.kernel.errors import BadRequest, Invalid

RESERVED = "langgraph"
DEFAULT_SEARCH_LIMIT = 10
DEFAULT_NAMESPACES_LIMIT = 100


class StoreRequests:
    """Answers requests for items, on the API's own database and loop."""

    def __init__(self, items: Items) -> None:
        self._items = items

    async def put(self, body: ItemPut) -> None:
        """Store an item; an existing one keeps its time of creation.

        Raises BadRequest, TooManyTexts and EmbeddingFailed.
        """
        _check_name(body.namespace, body.key)
        if not body.namespace:
            raise BadRequest("Namespace cannot be empty.")
        if body.namespace[0] == RESERVED:
            raise BadRequest(f'Root label for namespace cannot be "{RESERVED}". Got: {body.namespace}')
        if body.index is True:
            raise Invalid.field(["body", "index"], "must be false, or a list of fields")

        ttl = self._items.setup.default_ttl if body.ttl is None else body.ttl
        op = PutOp(namespace=tuple(body.namespace), key=body.key, value=body.value, index=body.index, ttl=ttl)
        await self._items.write([op])

    async def get(self, query: ItemQuery) -> StoredItem | None:
        """Return an item, or None. Raises BadRequest."""
        if query.key is None:
            raise BadRequest("Key is required")

        namespace = query.namespace.split(".")
        _check_name(namespace, query.key, "query")
        [row] = await self._items.get(
            [GetOp(tuple(namespace), query.key, self._is_refreshed_on_read(query.refresh_ttl))]
        )

        return _to_item(StoredItem, row) if row else None

    async def delete(self, body: ItemDelete) -> None:
        """Delete an item, whether or not it exists."""
        _check_name(body.namespace or [], body.key)
        if body.namespace:
            await self._items.write([PutOp(tuple(body.namespace), body.key, None)])

    async def search(self, body: ItemSearch) -> FoundItems:
        """Return the items that match. Raises UnsupportedOperator and EmbeddingFailed."""
        prefix = body.namespace_prefix or []
        _check_field(["body", "namespace_prefix"], check_namespace, prefix)
        op = SearchOp(
            namespace_prefix=tuple(prefix),
            filter=body.filter,
            limit=DEFAULT_SEARCH_LIMIT if body.limit is None else body.limit,
            offset=body.offset or 0,
            query=body.query,
            refresh_ttl=self._is_refreshed_on_read(body.refresh_ttl),
        )

        [rows] = await self._items.search([op])
        return FoundItems([_to_item(FoundItem, row) for row in rows])

    async def list_namespaces(self, body: NamespaceSearch) -> Namespaces:
        """Return the namespaces that match, sorted."""
        conditions: list[MatchCondition] = []
        for name, path in (("prefix", body.prefix), ("suffix", body.suffix)):
            if path:
                _check_field(["body", name], check_namespace, path)
                conditions.append(MatchCondition("prefix" if name == "prefix" else "suffix", tuple(path)))

        limit = DEFAULT_NAMESPACES_LIMIT if body.limit is None else body.limit
        op = ListNamespacesOp(tuple(conditions), body.max_depth, limit, body.offset or 0)
        [namespaces] = await self._items.list_namespaces([op])

        return Namespaces([list(namespace) for namespace in namespaces])

    def _is_refreshed_on_read(self, refresh_ttl: bool | None) -> bool:  # noqa: FBT001 - a field of the request
        return self._items.setup.refresh_on_read if refresh_ttl is None else refresh_ttl


def _check_name(namespace: Sequence[str], key: str, where: str = "body") -> None:
    _check_field([where, "namespace"], check_namespace, namespace)
    _check_field([where, "key"], check_key, key)


def _check_field(loc: Sequence[str], check: Callable[..., Any], *values: Any) -> None:
    try:
        check(*values)
    except ValueError as exc:
        raise Invalid.field(loc, str(exc)) from exc


def _to_item(kind: Any, row: Record) -> Any:
    fields = {
        "namespace": list(row["namespace"]),
        "key": row["key"],
        "value": msgspec.Raw(row["value"].encode()),
        "created_at": iso(row["created_at"]),
        "updated_at": iso(row["updated_at"]),
    }

    if row["expires_at"] is not None:
        fields |= {"ttl": row["ttl_minutes"], "expires_at": iso(row["expires_at"])}

    return kind(**fields) if kind is StoredItem else kind(**fields, score=row["score"])
