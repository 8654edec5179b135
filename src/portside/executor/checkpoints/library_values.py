"""Values of the standard library and of numpy that langgraph's serializer refuses, without pickle.

Such a value is stored as the name of its class and the plain data to make it from, in langgraph's own extension types:
`fractions.Fraction` and `"1/2"`. Whoever reads it without the class finds the plain data. `serde` decides which classes
may be instantiated. It takes those of this module, because none of them executes code that the data names.
"""

import array
import dataclasses
import importlib
import sys
from collections import ChainMap, UserDict, UserList, UserString, deque
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from fractions import Fraction
from pathlib import PurePath
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

# The codes of langgraph's extension types: a class with one argument, with several, with keyword arguments, a pydantic
# model of the first and of the second version, an array of numpy, and a snapshot of a channel.
ONE = 0
SEVERAL = 1
KEYWORDS = 2
MODEL_1 = 4
MODEL_2 = 5
ARRAY = 6
SNAPSHOT = 7
NUMPY = "numpy"
OBJECT_ARRAY = "ndarray"
ADDRESSES = b"\xa2|O"
"""Begins an array of objects in what langgraph writes, in which their addresses follow."""
_OPTIONS = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_UUID
    # Older versions of ormsgpack, which come with older ones of langgraph, lack these.
    | getattr(ormsgpack, "OPT_PASSTHROUGH_ENUM", 0)
    | getattr(ormsgpack, "OPT_REPLACE_SURROGATES", 0)
)
_LANGGRAPH = JsonPlusSerializer()
_VIEWS = (KeysView, ValuesView, ItemsView)
_PLAIN_KEYS = frozenset({str, int, float, bool, bytes, type(None)})
DICT = ("builtins", "dict")
"""A dict that is stored as pairs, for `make_dict`."""


class _Form(NamedTuple):
    """How a class is stored: where it is found, how it is called, and the data that it is called with."""

    module: str
    name: str
    code: int
    get_data: Callable[[Any], Any]


# By exact class: a subclass need not take the same data.
_FORMS: dict[type, _Form] = {
    int: _Form("builtins", "int", ONE, str),
    complex: _Form("builtins", "complex", ONE, str),
    range: _Form("builtins", "range", SEVERAL, lambda value: [value.start, value.stop, value.step]),
    slice: _Form("builtins", "slice", SEVERAL, lambda value: [value.start, value.stop, value.step]),
    Fraction: _Form("fractions", "Fraction", ONE, str),
    SimpleNamespace: _Form("types", "SimpleNamespace", KEYWORDS, vars),
    MappingProxyType: _Form("types", "MappingProxyType", ONE, dict),
    ChainMap: _Form("collections", "ChainMap", SEVERAL, lambda value: value.maps),
    UserDict: _Form("collections", "UserDict", ONE, lambda value: value.data),
    UserList: _Form("collections", "UserList", ONE, lambda value: value.data),
    UserString: _Form("collections", "UserString", ONE, lambda value: value.data),
    array.array: _Form("array", "array", SEVERAL, lambda value: [value.typecode, value.tolist()]),
}
LIBRARY_CLASSES = frozenset((form.module, form.name) for form in _FORMS.values())
"""The classes of the standard library that are stored here, by their modules and names."""


class _Pairs:
    """The entries of a dict with keys that MessagePack does not have."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self.pairs = [[key, _replace_dicts(value)] for key, value in entries.items()]


def pack(value: Any) -> bytes:
    """Encode a value that langgraph's serializer refuses. Raises TypeError for one that has no form without pickle."""
    try:
        return ormsgpack.packb(value, default=_encode, option=_OPTIONS)
    except TypeError as exc:
        if "key" not in str(exc):
            raise

    return ormsgpack.packb(_replace_dicts(value), default=_encode, option=_OPTIONS)


def _replace_dicts(value: Any) -> Any:
    """Replace the dicts that have other keys than plain ones."""
    if type(value) in (list, tuple):
        return [_replace_dicts(item) for item in value]
    if not isinstance(value, dict):
        return value
    if all(type(key) in _PLAIN_KEYS for key in value):
        return {key: _replace_dicts(item) for key, item in value.items()}

    return _Pairs(value)


def _encode(value: Any) -> Any:
    """Return the extension that stands for an object, whose parts may be values of this module."""
    if isinstance(value, _Pairs):
        return ormsgpack.Ext(ONE, pack([*DICT, value.pairs]))

    form = _FORMS.get(type(value))
    if form is not None:
        return ormsgpack.Ext(form.code, pack([form.module, form.name, form.get_data(value)]))

    numpy: Any = sys.modules.get(NUMPY)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _encode_array(value)
    if numpy is not None and isinstance(value, numpy.generic):
        return _encode_scalar(numpy, value)

    if isinstance(value, (float, tuple, *_VIEWS)) and not callable(getattr(value, "_asdict", None)):
        # As langgraph stores instances of subclasses of texts, integers, lists and dicts: without their class.
        return float(value) if isinstance(value, float) else list(value)

    return _encode_container(value)


def _encode_array(value: Any) -> Any:
    if value.dtype.hasobject:
        return ormsgpack.Ext(ONE, pack([NUMPY, OBJECT_ARRAY, {"shape": value.shape, "items": value.ravel().tolist()}]))

    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return ormsgpack.Ext(ARRAY, pack([value.dtype.str, value.shape, order, value.tobytes(order="A")]))


def _encode_scalar(numpy: Any, value: Any) -> Any:
    kind = value.dtype.kind
    if kind in "Mm":
        unit, count = numpy.datetime_data(value.dtype)
        number = str(value) if kind == "M" or numpy.isnat(value) else value.astype("int64").item()
        unit_name = unit if count == 1 else f"{count}{unit}"
        data = [number] if unit == "generic" else [number, unit_name]
        return ormsgpack.Ext(SEVERAL, pack([NUMPY, type(value).__name__, data]))

    name = "bool_" if kind == "b" else type(value).__name__
    item = value.item()

    # The longest numbers have no counterpart in Python.
    return ormsgpack.Ext(ONE, pack([NUMPY, name, str(value) if isinstance(item, numpy.generic) else item]))


def _encode_container(value: Any) -> Any:
    """Encode an object as langgraph does, but its parts with `pack`."""
    kind = type(value)
    if kind.__name__ == "_DeltaSnapshot" and kind.__module__.startswith("langgraph."):
        return ormsgpack.Ext(SNAPSHOT, pack(value.value))

    dumped = _dump_parts(value)
    if dumped is None:
        return _encode_as_langgraph(value)

    code, data = dumped
    how = ["model_validate_json"] if code == MODEL_2 else []
    return ormsgpack.Ext(code, pack([kind.__module__, kind.__name__, data, *how]))


def _dump_parts(value: Any) -> tuple[int, Any] | None:
    """Return how an object is made again, and of which parts; None if it has no parts that are known here."""
    if callable(getattr(value, "model_dump", None)):
        return MODEL_2, value.model_dump()
    if callable(getattr(value, "get_secret_value", None)):
        return None
    if callable(getattr(value, "dict", None)):
        return MODEL_1, value.dict()

    if callable(getattr(value, "_asdict", None)):
        return KEYWORDS, value._asdict()

    return _find_parts(value)


def _find_parts(value: Any) -> tuple[int, Any] | None:
    if isinstance(value, PurePath):
        return SEVERAL, value.parts

    if callable(getattr(value, "unicode_string", None)):
        # A URL of pydantic.
        return ONE, str(value)

    if isinstance(value, (set, frozenset, deque)):
        return ONE, list(value)

    if type(value).__module__ == "langgraph.types" and type(value).__name__ == "Send":
        timeout = getattr(value, "timeout", None)
        return SEVERAL, [value.node, value.arg, *([] if timeout is None else [timeout])]

    fields = _find_fields(value)
    return None if fields is None else (KEYWORDS, fields)


def _find_fields(value: Any) -> dict[str, Any] | None:
    """Return the arguments of the constructor of a data class: of the standard library, of attrs or of msgspec."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if (attributes := getattr(value, "__attrs_attrs__", None)) is not None:
        return {attribute.alias: getattr(value, attribute.name) for attribute in attributes if attribute.init}
    if (names := getattr(value, "__struct_fields__", None)) is not None:
        return {name: getattr(value, name) for name in names}

    return None


def _encode_as_langgraph(value: Any) -> Any:
    """Return langgraph's own form of an object. Raises TypeError if it has none."""
    kind, data = _LANGGRAPH.dumps_typed(value)
    if kind != "msgpack":
        return bytes(data)

    return ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)


def make_dict(pairs: list[list[Any]]) -> dict[Any, Any]:
    """Make a dict of stored pairs, whose keys may be tuples."""
    return {_to_key(key): value for key, value in pairs}


def _to_key(value: Any) -> Any:
    return tuple(_to_key(part) for part in value) if isinstance(value, list) else value


def find_numpy_kind(name: str) -> Callable[..., Any] | None:
    """Return the function that makes a stored value of numpy: a scalar, or an array of objects; None for others."""
    if name == OBJECT_ARRAY:
        return _make_object_array

    numpy = importlib.import_module(NUMPY)
    kind = getattr(numpy, name, None)

    # `void` takes a number of bytes to allocate.
    is_scalar = isinstance(kind, type) and issubclass(kind, numpy.generic) and not issubclass(kind, numpy.void)
    return kind if is_scalar else None


def _make_object_array(fields: dict[str, Any]) -> Any:
    numpy = importlib.import_module(NUMPY)
    array = numpy.empty(len(fields["items"]), dtype=object)
    for index, item in enumerate(fields["items"]):
        array[index] = item

    return array.reshape(fields["shape"])
