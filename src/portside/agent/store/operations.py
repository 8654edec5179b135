"""The operations on the store as plain data, and batches of them for executors.

The names and fields are those of langgraph's operations, which may have another version in an executor, and which a
server without graphs does not import.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Handler = Callable[[Any], Coroutine[Any, Any, list[Any]]]


class InvalidNamespaceError(ValueError):
    """A namespace or a key is invalid; the message says why."""


class GetOp(NamedTuple):
    """Read an item."""

    namespace: tuple[str, ...]
    key: str
    refresh_ttl: bool = True


class SearchOp(NamedTuple):
    """Find items below a prefix, by a filter of their values, and by meaning if there is a query."""

    namespace_prefix: tuple[str, ...]
    filter: dict[str, Any] | None = None
    limit: int = 10
    offset: int = 0
    query: str | None = None
    refresh_ttl: bool = True


class MatchCondition(NamedTuple):
    """A prefix or a suffix of namespaces; `*` is any label."""

    match_type: Literal["prefix", "suffix"]
    path: tuple[str, ...]


class ListNamespacesOp(NamedTuple):
    """List the namespaces that fulfil all conditions, cut at a depth."""

    match_conditions: tuple[MatchCondition, ...] | None = None
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


class PutOp(NamedTuple):
    """Store an item, or delete it if the value is None. `index` names the fields to embed, or is false for none."""

    namespace: tuple[str, ...]
    key: str
    value: Mapping[str, Any] | None
    index: Literal[False] | list[str] | None = None  # type: ignore[assignment]
    ttl: float | None = None


_OPS: dict[str, type[Any]] = {"get": GetOp, "search": SearchOp, "put": PutOp, "list": ListNamespacesOp}


def read_op(kind: str, fields: Mapping[str, Any]) -> Any:
    """Return the operation that an executor sent. Raises ValueError."""
    if kind not in _OPS:
        raise ValueError(f"unknown operation {kind!r} on the store")

    op_type = _OPS[kind]
    # A newer langgraph may have fields that this server does not know; unset they mean nothing.
    if unknown := [name for name, value in fields.items() if name not in op_type._fields and value is not None]:
        raise ValueError(f"this server's store does not know {', '.join(unknown)}, which a newer langgraph has")

    values = {name: value for name, value in fields.items() if name in op_type._fields}
    for name in ("namespace", "namespace_prefix"):
        if name in values and values[name] is not None:
            values[name] = tuple(values[name])

    if values.get("match_conditions"):
        values["match_conditions"] = tuple(
            MatchCondition(match_type, tuple(path)) for match_type, path in values["match_conditions"]
        )

    try:
        return op_type(**values)
    except TypeError as exc:
        raise ValueError(f"a malformed operation on the store: {exc}") from exc


async def run_batch(ops: Sequence[Any], handlers: Sequence[tuple[type[Any], Handler]]) -> list[Any]:
    """Run the operations of each class by its handler, in the order of the handlers; return all results in order."""
    results: list[Any] = [None] * len(ops)
    for kind, handler in handlers:
        numbers = [number for number, op in enumerate(ops) if isinstance(op, kind)]
        if numbers:
            kind_results = await handler([ops[number] for number in numbers])
            for number, result in zip(numbers, kind_results, strict=True):
                results[number] = result

    return results
