"""The serializer of checkpoints: langgraph's, with a deserializer that cannot execute code.

Langgraph's own deserializer imports whatever module a checkpoint names and calls what it finds there. This one creates
only instances of data classes (dataclasses, pydantic models, named tuples, enums and what langgraph itself stores), and
only from modules that are loaded or that belong to a loaded package. Anything else is returned as the plain data that
was stored. The configuration may narrow this to a list of classes; listed classes are imported if necessary.
"""

import dataclasses
import importlib
import json
import logging
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

import ormsgpack
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from portside.executor.checkpoints.library_values import (
    ADDRESSES,
    DICT,
    LIBRARY_CLASSES,
    NUMPY,
    find_numpy_kind,
    make_dict,
    pack,
)
from portside.executor.checkpoints.plain_messages import MODULE, is_plain_message

log = logging.getLogger(__name__)
# The codes of langgraph's extension types that name a callable: with one argument, with several, with keyword
# arguments, a method of it, and pydantic models of both versions.
_ONE = 0
_SEVERAL = 1
_KEYWORDS = 2
_METHOD = 3
_MODEL_1 = 4
_MODEL_2 = 5
_SNAPSHOT = 7
_CONSTRUCTED = frozenset({_ONE, _SEVERAL, _KEYWORDS, _MODEL_1, _MODEL_2})
_VALUES = (
    set,
    frozenset,
    deque,
    UUID,
    Decimal,
    timedelta,
    date,
    time,
    timezone,
    ZoneInfo,
    PurePath,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
_LANGGRAPH_MODULES = frozenset({"langgraph.types", "langgraph.store.base"})
# Attributes of pydantic models of both versions, of its secrets and URLs, and of msgspec and attrs classes.
_MODELS = (
    "__pydantic_fields__",
    "__fields__",
    "get_secret_value",
    "unicode_string",
    "__struct_fields__",
    "__attrs_attrs__",
)
# What is found without looking for it among the loaded modules: none of it executes code that a checkpoint names.
_HARMLESS = LIBRARY_CLASSES | {("re", "compile")}
_OPTION = ormsgpack.OPT_NON_STR_KEYS
_WITHOUT_PICKLE = JsonPlusSerializer()
Modules = list[list[str]] | bool | None
Rule = Callable[[str, str], Any]
"""Finds a class by its module and its name; None for one that must not be instantiated."""


@dataclasses.dataclass(frozen=True, slots=True)
class SerdeRules:
    """The classes that may be restored from checkpoints.

    Lists name modules and classes; true allows all classes that hold data, None those that langgraph itself stores.
    With `pickle_fallback` everything else is pickled, and reading a pickle runs the code that it names.
    """

    allowed_json_modules: Modules = None
    allowed_msgpack_modules: Modules = True
    pickle_fallback: bool = False


class UnsafeCheckpoint(NotImplementedError):
    """A checkpoint is stored in a form that this server does not read, because reading it could execute code."""


def make_serde(config: SerdeRules = SerdeRules()) -> "SafeSerializer":
    """Return the serializer for a configuration."""
    return SafeSerializer(config)


class SafeSerializer(JsonPlusSerializer):
    """Langgraph's serializer with its own rule for which classes are instantiated."""

    def __init__(self, config: SerdeRules) -> None:
        hook = _build_hook(_build_rule(config.allowed_msgpack_modules))
        self._json_hook = _build_json_hook(hook)
        super().__init__(pickle_fallback=config.pickle_fallback, __unpack_ext_hook__=hook)
        self._json = _build_rule(config.allowed_json_modules)
        self._reads_json = bool(config.allowed_json_modules)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Serialize a value. Raises TypeError for one that cannot be stored, or only pickled if that is not allowed."""
        try:
            kind, data = _WITHOUT_PICKLE.dumps_typed(obj)
        except TypeError:
            return self._dump_refused(obj)

        if kind == "msgpack" and ADDRESSES in data:
            return kind, pack(obj)
        if kind == "bytes" and type(obj) is not bytes:
            return "msgpack", pack(obj)

        # What was returned for a bytearray is the value itself, which databases and links do not take.
        return kind, bytes(data)

    def _dump_refused(self, obj: Any) -> tuple[str, bytes]:
        """Serialize what langgraph's serializer refuses without pickle."""
        try:
            return "msgpack", pack(obj)
        except TypeError:
            # With `pickle_fallback` langgraph pickles it.
            return super().dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Deserialize a value. Raises UnsafeCheckpoint for a kind that could execute code and is not allowed."""
        kind, raw = data
        if kind == "pickle" and not self.pickle_fallback:
            raise UnsafeCheckpoint(
                "A checkpoint is pickled; set checkpointer.serde.pickle_fallback to read it, which can execute code"
            )

        if kind != "json":
            return super().loads_typed(data)

        if not self._reads_json:
            raise UnsafeCheckpoint(
                "A checkpoint is stored as JSON; list its classes in checkpointer.serde.allowed_json_modules"
            )

        return _create_instances(json.loads(raw), self._json)

    def loads_for_json(self, data: tuple[str, bytes]) -> Any:
        """Deserialize a value to be encoded as JSON: messages of langchain may be the dicts that their JSON has."""
        kind, raw = data
        if kind != "msgpack":
            return self.loads_typed(data)

        return ormsgpack.unpackb(raw, ext_hook=self._json_hook, option=_OPTION)


def _build_rule(allowed: Modules) -> Rule:
    """Return a function that finds a class by name; it returns None for one that must not be instantiated."""
    listed = frozenset(map(_parse_name, allowed)) if isinstance(allowed, list) else frozenset()

    def find(module: str, name: str) -> Any:
        if (module, name) in _HARMLESS or (module, name) in listed:
            return getattr(importlib.import_module(module), name, None)
        if (module, name) == DICT:
            return make_dict
        if module == NUMPY:
            return _find_numpy_kind(name)

        value: Any = getattr(sys.modules.get(module) or _import_module(module), name, None)
        if not isclass(value):
            return None

        kind: Any = value
        return kind if _is_own(kind) or (allowed is True and _holds_data(kind)) else None

    return find


def _find_numpy_kind(name: str) -> Any:
    """Return the function that makes a value of numpy; None without numpy, so that its plain data is returned."""
    try:
        return find_numpy_kind(name)
    except ImportError:
        return None


def _parse_name(entry: Iterable[str]) -> tuple[str, str]:
    *module, name = entry
    return ".".join(module), name


def _import_module(module: str) -> Any:
    """Import a module of a loaded package, or return None: the project executes that package's code anyway."""
    if module.partition(".")[0] not in sys.modules or module.endswith("__main__"):
        return None

    try:
        return importlib.import_module(module)
    except Exception as exc:  # noqa: BLE001 - the value is returned as plain data
        fields = {"module": module, "error": type(exc).__name__}
        log.warning("a module that a checkpoint names cannot be imported", extra={"fields": fields})
        return None


@lru_cache(maxsize=4096)
def _is_own(kind: Any) -> bool:
    """Whether langgraph stores values of this class by itself."""
    return issubclass(kind, (*_VALUES, BaseMessage, Document)) or kind.__module__ in _LANGGRAPH_MODULES


@lru_cache(maxsize=4096)
def _holds_data(kind: Any) -> bool:
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    is_model = any(hasattr(kind, name) for name in _MODELS)
    return is_named_tuple or is_model or dataclasses.is_dataclass(kind) or issubclass(kind, Enum)


def _build_hook(find: Rule) -> Callable[[int, bytes], Any]:
    """Return the decoder of langgraph's extension types, like its own, with a rule for the classes that they name."""
    original = JsonPlusSerializer()

    def hook(code: int, data: bytes) -> Any:
        if code == _METHOD:
            parts = ormsgpack.unpackb(data, ext_hook=hook, option=_OPTION)
            is_datetime = tuple(parts[:2]) == ("datetime", "datetime") and parts[3] == "fromisoformat"
            return datetime.fromisoformat(parts[2]) if is_datetime else parts[2]

        if code in _CONSTRUCTED:
            return _create_instance(code, ormsgpack.unpackb(data, ext_hook=hook, option=_OPTION), find)
        if code == _SNAPSHOT:
            return _create_snapshot(ormsgpack.unpackb(data, ext_hook=hook, option=_OPTION))

        # Arrays of numpy: they contain only numbers and name no class.
        return original.loads_typed(("msgpack", ormsgpack.packb(ormsgpack.Ext(code, data))))

    return hook


def _build_json_hook(hook: Callable[[int, bytes], Any]) -> Callable[[int, bytes], Any]:
    """Return a decoder like `hook` that leaves messages as they are stored where their JSON is the same."""
    name = MODULE.encode()

    def json_hook(code: int, data: bytes) -> Any:
        if code == _MODEL_2 and name in data[:64]:
            parts = ormsgpack.unpackb(data, ext_hook=json_hook, option=_OPTION)
            if all(type(name) is str for name in parts[:2]) and is_plain_message(*parts[:3]):
                return parts[2]

        return hook(code, data)

    return json_hook


def _create_snapshot(value: Any) -> Any:
    kind = getattr(sys.modules.get("langgraph.checkpoint.serde.types"), "_DeltaSnapshot", None)
    return value if kind is None else kind(value)


def _create_instance(code: int, parts: Any, find: Rule) -> Any:
    """Create a stored instance; return its plain data if its class must not be instantiated or has changed."""
    module = parts[0]
    name = parts[1]
    data = parts[2]
    kind = find(str(module), str(name))
    if kind is None:
        _warn_of_plain_data(str(module), str(name))
        return data

    try:
        if code == _ONE:
            return kind(data)

        if code == _SEVERAL:
            # A Send may have a third part, its timeout, which is a keyword argument.
            is_send = kind.__module__ == "langgraph.types" and kind.__name__ == "Send" and len(data) == 3
            return kind(*data[:2], timeout=data[2]) if is_send else kind(*data)

        try:
            return kind(**data)
        except Exception:
            if code == _KEYWORDS:
                raise

            # As langgraph does: a model that is not valid any more is created without validation.
            return (kind.construct if code == _MODEL_1 else kind.model_construct)(**data)
    except Exception as exc:  # noqa: BLE001 - the class is the project's, and may have changed since
        fields = {"name": f"{module}.{name}", "error": type(exc).__name__}
        log.warning("a value does not fit its class any more", extra={"fields": fields})
        return data


@lru_cache(maxsize=1000)
def _warn_of_plain_data(module: str, name: str) -> None:
    fields = {"name": f"{module}.{name}"}
    log.warning("a checkpoint names a class that is not instantiated; its plain data is used", extra={"fields": fields})


def _create_instances(value: Any, find: Rule) -> Any:
    """Create the objects in a JSON value, as older versions of langgraph wrote them."""
    if isinstance(value, list):
        return [_create_instances(part, find) for part in value]
    if not isinstance(value, dict):
        return value

    plain = {key: _create_instances(part, find) for key, part in value.items()}
    if plain.get("lc") != 2 or plain.get("type") != "constructor" or not isinstance(plain.get("id"), list):
        return plain

    kind = find(*_parse_name(plain["id"]))
    return plain if kind is None else kind(*plain.get("args", ()), **plain.get("kwargs", {}))
