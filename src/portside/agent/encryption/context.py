"""The encryption context: plain metadata for the project's handlers, such as the tenant that data belongs to.

A client sends it in a header, and a run keeps the context of the request that created it. It is not secret: it is
stored in clear next to the ciphertext, and passed to the handlers again for decryption.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any
from uuid import UUID

from cachetools import FIFOCache

from portside.kernel.errors import Invalid
from portside.kernel.http.json_validation import read_json

HEADER = "X-Encryption-Context"
LIMIT_BYTES = 4096
# The key of a run's kwargs and of a cron's payload that stores the context.
CONTEXT_KEY = "encryption_context"
_LOC = ["header", HEADER]
# The contexts of this many runs are kept, the newest; events of older runs are encrypted without a context.
MAX_RUNS = 10_000
_contexts_by_run: FIFOCache[UUID, Mapping[str, Any]] = FIFOCache(MAX_RUNS)
_current: ContextVar[Mapping[str, Any]] = ContextVar("encryption_context", default=MappingProxyType({}))


def current_context() -> dict[str, Any]:
    """Return the context of this task."""
    return dict(_current.get())


def set_context(metadata: Mapping[str, Any]) -> None:
    """Set the context of this task."""
    _current.set(metadata)


@contextmanager
def in_context(metadata: Mapping[str, Any]) -> Iterator[None]:
    """Set the context for a block."""
    token = _current.set(metadata)
    try:
        yield
    finally:
        _current.reset(token)


def enter_run_context(run_id: UUID, kwargs: Mapping[str, Any]) -> None:
    """Set the context of this task to that of a run, and keep it for the run's events, which other tasks write."""
    context = kwargs.get(CONTEXT_KEY) or {}
    _current.set(context)
    if context:
        _contexts_by_run[run_id] = context


def context_of_run(run_id: UUID | None) -> Mapping[str, Any]:
    """Return the context of this task, else that of a run which recently began in this process."""
    return _current.get() or (_contexts_by_run.get(run_id, {}) if run_id is not None else {})


def stored_context() -> dict[str, Any]:
    """Return the part of a run's kwargs or a cron's payload that stores the context; empty without one."""
    metadata = _current.get()
    return {CONTEXT_KEY: dict(metadata)} if metadata else {}


def read_header(text: str | None) -> dict[str, Any]:
    """Parse the header that a client sends. Raises Invalid unless it is a JSON object in base64, of 4 KB at most."""
    if text is None:
        return {}
    if len(text) > LIMIT_BYTES:
        raise Invalid.field(_LOC, f"Expected {LIMIT_BYTES} characters or less")

    try:
        value = read_json(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, Invalid) as exc:
        raise Invalid.field(_LOC, "Expected a JSON object in base64") from exc

    if not isinstance(value, dict):
        raise Invalid.field(_LOC, "Expected a JSON object in base64")

    return value
