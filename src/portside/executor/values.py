"""Values of handlers over a link, with their types: ids, times and tuples, which msgpack has no form for.

Other values without one become their JSON form, as `kernel/user_json.py` writes it.
"""

from datetime import date, datetime, time
from typing import Any
from uuid import UUID

import ormsgpack

from portside.kernel.user_json import plain

_BIG_INTEGER, _TUPLE, _UUID, _DATETIME, _DATE, _TIME = range(1, 7)
_OPTIONS = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_TIMES: dict[int, Any] = {_DATETIME: datetime, _DATE: date, _TIME: time}
MAX_INTEGER_DIGITS = 4000


def pack(value: Any) -> bytes:
    """Encode a value. Raises ValueError if it is nested too deeply or contains itself."""
    try:
        return _pack(value)
    except (TypeError, ValueError):
        return _pack(plain(value))


def _pack(value: Any) -> bytes:
    return ormsgpack.packb(value, default=_encode, option=_OPTIONS)


def _encode(value: Any) -> Any:
    if type(value) is tuple:
        return ormsgpack.Ext(_TUPLE, _pack(list(value)))
    if isinstance(value, UUID):
        return ormsgpack.Ext(_UUID, value.bytes)
    if isinstance(value, int):
        return ormsgpack.Ext(_BIG_INTEGER, str(value).encode())

    for tag, kind in _TIMES.items():
        if isinstance(value, kind):
            return ormsgpack.Ext(tag, value.isoformat().encode())

    return plain(value)


def unpack(data: bytes) -> Any:
    """Decode a value. Raises ValueError for what `pack` did not make."""
    return ormsgpack.unpackb(data, ext_hook=_decode, option=ormsgpack.OPT_NON_STR_KEYS)


def _decode(tag: int, data: bytes) -> Any:
    if tag == _TUPLE:
        return tuple(unpack(data))
    if tag == _UUID:
        return UUID(bytes=bytes(data))
    if tag == _BIG_INTEGER and len(data) <= MAX_INTEGER_DIGITS:
        return int(data)

    if tag in _TIMES:
        return _TIMES[tag].fromisoformat(bytes(data).decode())

    raise ValueError("an extension of an unknown type")
