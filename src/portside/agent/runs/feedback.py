"""Links by which people without a key give feedback on a run: asked of the platform that the run is traced to.

A client that names `feedback_keys` gets a link for each under `__feedback__` where it waits for the run or joins it.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from langsmith import Client
from langsmith.utils import tracing_is_enabled

from portside.agent.types.runs import Run
from portside.kernel.codec import dump_api, load
from portside.kernel.errors import Invalid
from portside.kernel.http.routes import refuse_field
from portside.kernel.logs import get_logger

log = get_logger(__name__)
FIELD = "feedback_keys"
LINKS_GOOD_FOR = timedelta(hours=3)
MADE_WITHIN_S = 5.0
KEYS_AT_MOST, KEY_LENGTH = 50, 180


def refuse_feedback(keys: Sequence[str] | None) -> None:
    """Refuse keys for which no links can be made. Raises Invalid, named."""
    if not keys:
        return
    if not tracing_is_enabled():
        raise refuse_field(FIELD, "this server traces its runs nowhere, so nothing can take feedback on them")
    if len(keys) > KEYS_AT_MOST or any(not 0 < len(key) <= KEY_LENGTH for key in keys):
        raise Invalid.field(["body", FIELD], f"Expected at most {KEYS_AT_MOST} keys of 1 to {KEY_LENGTH} characters")


def with_feedback(result: Awaitable[bytes], run: Run) -> Awaitable[bytes]:
    """Have the result of a run come with the links that were asked for with it."""
    keys = run.kwargs.get(FIELD)
    return _linked(result, run.run_id, list(dict.fromkeys(keys))) if keys else result


async def _linked(result: Awaitable[bytes], run_id: UUID, keys: list[str]) -> bytes:
    shown: Any = load(await result)
    if not isinstance(shown, dict):
        return dump_api(shown)
    try:
        async with asyncio.timeout(MADE_WITHIN_S):
            return dump_api({**shown, "__feedback__": await asyncio.to_thread(links_to, _client(), run_id, keys)})
    except Exception as exc:  # noqa: BLE001 - the result is worth more than the links
        log.warning("no feedback links could be made", run_id=str(run_id), error=type(exc).__name__)
        return dump_api(shown)


def links_to(client: Client, run_id: UUID, keys: list[str]) -> dict[str, str]:
    """Return an address for each key that takes feedback on a run for some hours."""
    tokens = client.create_presigned_feedback_tokens(run_id, keys, expiration=LINKS_GOOD_FOR)
    return {key: token.url for key, token in zip(keys, tokens, strict=True)}


@cache
def _client() -> Client:
    return Client(auto_batch_tracing=False)
