"""The serializer of checkpoints: langgraph's, but what it reads back can run no code.

Langgraph's own imports whatever module a checkpoint names and calls what it finds there. Here only classes that hold
data are made again (dataclasses, pydantic models, named tuples, enums and what langgraph itself stores), and only out
of modules that are loaded already or that belong to a package that is. Anything else comes back as the plain data that
it was written as. A configuration may narrow that to a list of classes; those on a list are imported if need be.
"""

import dataclasses
import importlib
import sys
from collections import deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from inspect import isclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PurePath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import ormsgpack
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from portside.agent.types.encryption import Modules, SerdeConfig
from portside.kernel.logs import get_logger

log = get_logger(__name__)
# The kinds of langgraph's extension types that name something to be called: with one argument, with several, with
# keywords, a method of it, and models of pydantic in both versions.
_ONE, _SEVERAL, _KEYWORDS, _METHOD, _MODEL_1, _MODEL_2, _SNAPSHOT = 0, 1, 2, 3, 4, 5, 7
_CONSTRUCTED = frozenset({_ONE, _SEVERAL, _KEYWORDS, _MODEL_1, _MODEL_2})
_VALUES = (
    set, frozenset, deque, UUID, Decimal, timedelta, date, time, timezone, ZoneInfo, PurePath, IPv4Address,
    IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network,
)  # fmt: skip
_LANGGRAPHS = frozenset({"langgraph.types", "langgraph.store.base"})
# What models of pydantic in both versions, its secrets, and classes of msgspec and of attrs have.
_MODELS = ("__pydantic_fields__", "__fields__", "get_secret_value", "__struct_fields__", "__attrs_attrs__")
_FUNCTIONS = frozenset({("re", "compile")})
_OPTION = ormsgpack.OPT_NON_STR_KEYS


class UnsafeCheckpoint(NotImplementedError):
    """A checkpoint is stored in a form that this server does not read, for reading it could run code."""


def make_serde(config: SerdeConfig = SerdeConfig()) -> SerializerProtocol:  # noqa: B008 - it is frozen
    """Return the serializer that a configuration asks for."""
    return SafeSerializer(config)


class SafeSerializer(JsonPlusSerializer):
    """Langgraph's serializer with a rule of its own for what is made again."""

    def __init__(self, config: SerdeConfig) -> None:
        hook = _hook(_rule(config.allowed_msgpack_modules))
        super().__init__(pickle_fallback=config.pickle_fallback, __unpack_ext_hook__=hook)
        self._json = _rule(config.allowed_json_modules)
        self._reads_json = bool(config.allowed_json_modules)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Read a value. Raises UnsafeCheckpoint for a kind that could run code and is not allowed."""
        kind, raw = data
        if kind == "pickle" and not self.pickle_fallback:
            raise UnsafeCheckpoint(
                "A checkpoint is pickled, and checkpointer.serde.pickle_fallback does not allow that"
            )
        if kind != "json":
            return super().loads_typed(data)
        if not self._reads_json:
            raise UnsafeCheckpoint("A checkpoint is stored as JSON; name what it may hold in allowed_json_modules")
        return _revived(msgspec.json.decode(raw), self._json)


Rule = Callable[[str, str], Any]


def _rule(allowed: Modules) -> Rule:
    """Return what finds the class of a name, or None where it may not be made."""
    listed = frozenset() if allowed is None or allowed is True else frozenset(map(_named, allowed))

    def find(module: str, name: str) -> Any:
        if (module, name) in _FUNCTIONS or (module, name) in listed:
            return getattr(importlib.import_module(module), name, None)
        found: Any = getattr(_loaded(module), name, None)
        if not isclass(found):
            return None
        kind: Any = found
        return kind if _is_own(kind) or (allowed is True and _holds_data(kind)) else None

    return find


def _named(entry: Iterable[str]) -> tuple[str, str]:
    *module, name = entry
    return ".".join(module), name


def _loaded(module: str) -> Any:
    """Return a module that is loaded, or that is part of a package that is: importing that is no surprise to anyone."""
    known = sys.modules.get(module)
    if known is not None or module.partition(".")[0] not in sys.modules or module.endswith("__main__"):
        return known
    try:
        return importlib.import_module(module)
    except Exception as exc:  # noqa: BLE001 - whatever it is, the value comes back as plain data
        log.warning("a module that a checkpoint names does not load", module=module, error=type(exc).__name__)
        return None


@lru_cache(maxsize=4096)
def _is_own(kind: Any) -> bool:
    """Whether langgraph stores values of this class by itself."""
    return issubclass(kind, (*_VALUES, BaseMessage, Document)) or kind.__module__ in _LANGGRAPHS


@lru_cache(maxsize=4096)
def _holds_data(kind: Any) -> bool:
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    is_model = any(hasattr(kind, name) for name in _MODELS)
    return is_named_tuple or is_model or dataclasses.is_dataclass(kind) or issubclass(kind, Enum)


def _hook(find: Rule) -> Callable[[int, bytes], Any]:
    """Return what reads langgraph's extension types, as its own does, with a rule for what they name."""
    langgraphs = JsonPlusSerializer()

    def hook(code: int, data: bytes) -> Any:
        if code == _METHOD:
            told = ormsgpack.unpackb(data, ext_hook=hook, option=_OPTION)
            is_moment = tuple(told[:2]) == ("datetime", "datetime") and told[3] == "fromisoformat"
            return datetime.fromisoformat(told[2]) if is_moment else told[2]
        if code in _CONSTRUCTED:
            return _made(code, ormsgpack.unpackb(data, ext_hook=hook, option=_OPTION), find)
        if code == _SNAPSHOT:
            return _snapshot(ormsgpack.unpackb(data, ext_hook=hook, option=_OPTION))
        # Arrays of numpy: numbers alone, nothing is named in them.
        return langgraphs.loads_typed(("msgpack", ormsgpack.packb(ormsgpack.Ext(code, data))))

    return hook


def _snapshot(value: Any) -> Any:
    kind = getattr(sys.modules.get("langgraph.checkpoint.serde.types"), "_DeltaSnapshot", None)
    return value if kind is None else kind(value)


def _made(code: int, told: Any, find: Rule) -> Any:
    """Make a value again; what may not be made, or cannot, is the plain data that it was written as."""
    module, name, given = told[0], told[1], told[2]
    kind = find(str(module), str(name))
    if kind is None:
        _say_left(str(module), str(name))
        return given
    try:
        return _called(code, kind, given)
    except Exception as exc:  # noqa: BLE001 - the class is the project's, and may have changed since
        log.warning("a value does not fit its class any more", name=f"{module}.{name}", error=type(exc).__name__)
        return given


@lru_cache(maxsize=1000)
def _say_left(module: str, name: str) -> None:
    log.warning("a checkpoint names what may not be made again; it is left as plain data", name=f"{module}.{name}")


def _called(code: int, kind: Any, given: Any) -> Any:
    if code == _ONE:
        return kind(given)
    if code == _SEVERAL:
        # What a node is sent may have a third part, its timeout, which is given by its name.
        is_send = kind.__module__ == "langgraph.types" and kind.__name__ == "Send" and len(given) == 3
        return kind(*given[:2], timeout=given[2]) if is_send else kind(*given)
    if code == _KEYWORDS:
        return kind(**given)
    try:
        return kind(**given)
    except Exception:  # noqa: BLE001 - as langgraph does: models are made again although they are not valid any more
        return (kind.construct if code == _MODEL_1 else kind.model_construct)(**given)


def _revived(value: Any, find: Rule) -> Any:
    """Make the objects of a JSON value again, as older versions of langgraph wrote them."""
    if isinstance(value, list):
        return [_revived(part, find) for part in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _revived(part, find) for key, part in value.items()}
    if plain.get("lc") != 2 or plain.get("type") != "constructor" or not isinstance(plain.get("id"), list):
        return plain
    kind = find(*_named(plain["id"]))
    return plain if kind is None else kind(*plain.get("args", ()), **plain.get("kwargs", {}))
