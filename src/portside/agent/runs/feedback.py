"""The feedback links that a client may request with a run (spec: `feedback_keys`)."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from portside.agent.runs.requests import FEEDBACK_FIELD
from portside.agent.types.runs import Run
from portside.kernel.codec import dump_api, load
from portside.kernel.logs import get_logger

log = get_logger(__name__)
LINKS_VALID_FOR = timedelta(hours=3)
LINKS_WITHIN_S = 5.0


def with_feedback(result: Awaitable[bytes], run: Run) -> Awaitable[bytes]:
    """Add feedback links to a run's result where the client sent `feedback_keys`.

    With a link, a person without an API key can give feedback on the run in the tracing platform. The links stand under
    `__feedback__`, by key.
    """
    keys = run.kwargs.get(FEEDBACK_FIELD)
    return _with_links(result, run.run_id, list(dict.fromkeys(keys))) if keys else result


async def _with_links(result: Awaitable[bytes], run_id: UUID, keys: list[str]) -> bytes:
    values: Any = load(await result)
    if not isinstance(values, dict):
        return dump_api(values)
    try:
        async with asyncio.timeout(LINKS_WITHIN_S):
            links = await asyncio.to_thread(lambda: feedback_links(_langsmith_client(), run_id, keys))
    except Exception as exc:  # noqa: BLE001 - the result is worth more than the links
        log.warning("feedback links could not be created", run_id=str(run_id), error=type(exc).__name__)
        return dump_api(values)
    return dump_api({**values, "__feedback__": links})


def feedback_links(client: Any, run_id: UUID, keys: list[str]) -> dict[str, str]:
    """Create a link for each key that takes feedback on a run for some hours."""
    tokens = client.create_presigned_feedback_tokens(run_id, keys, expiration=LINKS_VALID_FOR)
    return {key: token.url for key, token in zip(keys, tokens, strict=True)}


@cache
def _langsmith_client() -> Any:
    # Imported here: it takes 20 MB, and only feedback links need it.
    from langsmith import Client

    return Client(auto_batch_tracing=False)
