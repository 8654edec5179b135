"""Links for feedback that come with the result of a run, made by a platform."""

import json
from collections.abc import Awaitable, Callable, Iterator
from uuid import uuid4

import httpx2
import pytest

from portside.agent.http import waiting
from portside.agent.http.waiting import with_feedback
from portside.agent.runs.requests import refuse_feedback
from portside.agent.types.runs import Run
from portside.kernel.errors import Invalid
from tests.api.hosted import open_hosted
from tests.traced import forget_variables


@pytest.fixture
def trace_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    def to(url: str, key: str) -> None:
        for name, value in (("TRACING", "true"), ("ENDPOINT", url), ("API_KEY", key)):
            monkeypatch.setenv(f"LANGSMITH_{name}", value)
        forget()

    def forget() -> None:
        forget_variables()
        waiting._langsmith_client.cache_clear()

    yield to
    monkeypatch.undo()
    forget()


def run_with(keys: list[str] | None) -> Run:
    return Run(
        run_id=uuid4(),
        thread_id=uuid4(),
        assistant_id=uuid4(),
        metadata={},
        status="success",
        kwargs={"feedback_keys": keys},
        multitask_strategy="enqueue",
        created_at="",
        updated_at="",
        error=None,
        cancel_reason=None,
    )


async def after(result: bytes) -> bytes:
    return result


async def test_each_key_gets_a_link_that_takes_feedback_on_the_run(
    hosted_databases: Callable[[], Awaitable[str]],
    trace_to: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
):
    async with open_hosted(await hosted_databases()) as platform:
        trace_to(platform.url, platform.key)
        refuse_feedback(["stars", "right"])

        run = run_with(["stars", "right", "stars"])
        with monkeypatch.context() as patched:
            patched.setattr(waiting, "LINKS_WITHIN_S", 600.0)
            shown = json.loads(await with_feedback(after(b'{"n":1}'), run))

        assert (shown["n"], list(shown["__feedback__"])) == (1, ["stars", "right"])
        async with httpx2.AsyncClient() as nobody:
            assert (await nobody.get(shown["__feedback__"]["stars"], params={"score": 1})).status_code == 200

        # The server is gone from here on: the result still comes.
    assert json.loads(await with_feedback(after(b'{"n":1}'), run)) == {"n": 1}
    assert await with_feedback(after(b'{"n":1}'), run_with(None)) == b'{"n":1}'
    assert await with_feedback(after(b"null"), run) == b"null"


def test_invalid_feedback_keys_are_refused(trace_to: Callable[[str, str], None]):
    trace_to("http://127.0.0.1:9", "key")
    for keys in ([""], ["k" * 181], ["k"] * 51):
        with pytest.raises(Invalid, match="feedback_keys"):
            refuse_feedback(keys)
