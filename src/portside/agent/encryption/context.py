"""The encryption context of what is being done: plain words for the handlers, such as whose data it is.

A client sends it in a header; a run keeps that of the request that made it. It is no secret: it is stored beside what
is encrypted, in clear, and given to the handlers again when that is decrypted.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from portside.kernel.codec import load
from portside.kernel.errors import Invalid

HEADER = "X-Encryption-Context"
LIMIT_BYTES = 4096
# Where a run's kwargs and a cron's payload keep it.
KEPT_AS = "encryption_context"
_LOC = ["header", HEADER]
_current: ContextVar[Mapping[str, Any]] = ContextVar("encryption_context", default=MappingProxyType({}))


def current_context() -> dict[str, Any]:
    """Return the context of what is being done."""
    return dict(_current.get())


def set_context(metadata: Mapping[str, Any]) -> None:
    """Let what this task does from now on be done in a context."""
    _current.set(metadata)


@contextmanager
def context_of(holder: Mapping[str, Any]) -> Iterator[None]:
    """Do something in the context that a run's kwargs or a cron's payload was stored with."""
    token = _current.set(holder.get(KEPT_AS) or {})
    try:
        yield
    finally:
        _current.reset(token)


def kept_context() -> dict[str, Any]:
    """Return what a run's kwargs or a cron's payload keeps of the context: nothing where there is none."""
    metadata = current_context()
    return {KEPT_AS: metadata} if metadata else {}


def read_header(text: str | None) -> dict[str, Any]:
    """Read the context that a client sends. Raises Invalid unless it is a JSON object in base64, in 4 KB or less."""
    if text is None:
        return {}
    if len(text) > LIMIT_BYTES:
        raise Invalid.field(_LOC, f"Expected {LIMIT_BYTES} characters or less")
    try:
        value = load(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as exc:
        raise Invalid.field(_LOC, "Expected a JSON object in base64") from exc
    if not isinstance(value, dict):
        raise Invalid.field(_LOC, "Expected a JSON object in base64")
    return value
