"""Idempotency keys: a request that is sent again under the same key finds the run that the first one made."""

import hashlib
from uuid import UUID

import msgspec

from portside.agent.queue.types import RequestKey
from portside.agent.types.access import ANYONE, Caller
from portside.agent.types.runs import RunCreate
from portside.kernel.errors import Invalid

KEY_LOC = ["header", "Idempotency-Key"]
KEY_LIMIT = 255
FLAGS = ("stream_subgraphs", "stream_resumable", "strict_resume")
# The scope of the idempotency keys of stateless runs.
STATELESS = UUID(int=0)


def build_request_key(key: str, thread_id: UUID | None, bodies: list[RunCreate], caller: Caller = ANYONE) -> RequestKey:
    """Return the idempotency key that a client sent. Its scope is the thread, or this caller's stateless runs.

    Raises Invalid.
    """
    if not 0 < len(key) <= KEY_LIMIT:
        raise Invalid.field(KEY_LOC, f"Expected 1 to {KEY_LIMIT} characters")

    if caller.identity:
        # The same key of another caller must not find this caller's run.
        key = f"{hashlib.sha256(caller.identity.encode('utf-8', 'replace')).hexdigest()}:{key}"

    digest = hashlib.sha256(msgspec.json.encode([_normalize(body) for body in bodies], order="sorted"))
    return RequestKey(thread_id or STATELESS, key, digest.hexdigest())


def _normalize(body: RunCreate) -> RunCreate:
    """Fill in defaults, so that a request that sends a default has the same digest as one that leaves it out."""
    flags = {name: bool(getattr(body, name)) for name in FLAGS}
    return msgspec.structs.replace(body, stream_mode=list(body.modes), **flags)
