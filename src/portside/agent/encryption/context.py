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
from uuid import UUID

from portside.kernel.codec import load
from portside.kernel.errors import Invalid

HEADER = "X-Encryption-Context"
LIMIT_BYTES = 4096
# Where a run's kwargs and a cron's payload keep it.
KEPT_AS = "encryption_context"
_LOC = ["header", HEADER]
RUNS_AT_MOST = 10_000
_of_runs: dict[UUID, Mapping[str, Any]] = {}
_current: ContextVar[Mapping[str, Any]] = ContextVar("encryption_context", default=MappingProxyType({}))


def current_context() -> dict[str, Any]:
    """Return the context of what is being done."""
    return dict(_current.get())


def set_context(metadata: Mapping[str, Any]) -> None:
    """Let what this task does from now on be done in a context."""
    _current.set(metadata)


@contextmanager
def in_context(metadata: Mapping[str, Any]) -> Iterator[None]:
    """Do something in a context."""
    token = _current.set(metadata)
    try:
        yield
    finally:
        _current.reset(token)


def begin_run(run_id: UUID, kwargs: Mapping[str, Any]) -> None:
    """Let what this task does be done in the context of a run, and what is told of that run later on."""
    context = kwargs.get(KEPT_AS) or {}
    set_context(context)
    if context:
        while len(_of_runs) >= RUNS_AT_MOST:
            _of_runs.pop(next(iter(_of_runs)))
        _of_runs[run_id] = context


def context_of_run(run_id: UUID | None) -> Mapping[str, Any]:
    """Return the context of what is being done; where nothing is, that of a run which lately began here."""
    return _current.get() or (_of_runs.get(run_id, {}) if run_id is not None else {})


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
