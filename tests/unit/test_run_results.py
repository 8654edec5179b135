"""What a stored run is executed with, and what its outcome makes of the run and its thread."""

from typing import Any
from uuid import uuid4

import pytest

from portside.agent.engine import to_run_request, to_run_result
from portside.agent.queue.types import RUN_NOT_FOUND_RESULT, ClaimedRun, RunResult
from portside.agent.types.runs import RunStatus
from portside.agent.types.threads import ThreadStatus
from portside.executor.requests import Outcome

ERROR = {"error": "ValueError", "message": "kaboom"}
QUESTION = {"task": [{"id": "i", "value": "go on?"}]}


def build_run(**fields: Any) -> ClaimedRun:
    given: dict[str, Any] = {"kwargs": {}, "attempt": 1, "is_temporary": False, **fields}
    return ClaimedRun(run_id=uuid4(), thread_id=uuid4(), assistant_id=uuid4(), **given)


def build_outcome(**fields: Any) -> Outcome:
    return Outcome(**{"values": b"{}", "interrupts": {}, "has_next": False, "error": None, **fields})


@pytest.mark.parametrize(
    ("outcome", "status", "thread_status"),
    [
        ({}, RunStatus.SUCCESS, ThreadStatus.IDLE),
        ({"has_next": True}, RunStatus.SUCCESS, ThreadStatus.INTERRUPTED),
        ({"interrupts": QUESTION}, RunStatus.SUCCESS, ThreadStatus.INTERRUPTED),
        ({"error": ERROR}, RunStatus.ERROR, ThreadStatus.ERROR),
        ({"error": ERROR, "has_next": True, "interrupts": QUESTION}, RunStatus.ERROR, ThreadStatus.ERROR),
        # A refused answer leaves the thread as it was, with its question.
        ({"error": ERROR, "is_refused": True}, RunStatus.ERROR, None),
    ],
)
def test_an_outcome_says_how_the_run_and_its_thread_are(outcome: dict[str, Any], status: Any, thread_status: Any):
    result = to_run_result(build_outcome(**outcome))
    assert (result.status, result.thread_status, result.error) == (status, thread_status, outcome.get("error"))


def test_metadata_of_a_client_does_not_replace_the_ids_of_the_run():
    """A rollback finds the checkpoints by the id of their run, and an attempt writes under its number."""
    claimed = {"run_id": str(uuid4()), "run_attempt": 7, "team": "a"}
    run = build_run(kwargs={"config": {"metadata": claimed}}, attempt=2)
    request = to_run_request(run, resume=False)
    assert request.config["metadata"] == {"run_id": str(run.run_id), "run_attempt": 2, "team": "a"}
    assert request.config["configurable"] == {"run_id": str(run.run_id), "thread_id": str(run.thread_id)}


def test_only_the_first_attempt_on_a_thread_of_its_own_needs_no_checkpoints():
    found = {
        (is_temporary, attempt, was_started): to_run_request(
            build_run(is_temporary=is_temporary, attempt=attempt, was_started=was_started), resume=False
        ).is_ephemeral
        for is_temporary, attempt, was_started in (
            (True, 1, False),
            (True, 2, False),
            (True, 1, True),
            (False, 1, False),
        )
    }
    assert [key for key, is_ephemeral in found.items() if is_ephemeral] == [(True, 1, False)]


@pytest.mark.parametrize(
    ("status", "received"),
    [
        (RunStatus.SUCCESS, b'{"n":1}'),
        (RunStatus.INTERRUPTED, b'{"n":1}'),
        (RunStatus.TIMEOUT, b'{"n":1}'),
        (RunStatus.ERROR, b'{"__error__":{"error":"ValueError","message":"kaboom"}}'),
        (RunStatus.ROLLED_BACK, RUN_NOT_FOUND_RESULT),
    ],
)
def test_a_waiting_client_gets_the_values_unless_the_run_failed_or_is_gone(status: RunStatus, received: bytes):
    result = RunResult(status=status, thread_status=None, values=b'{"n":1}', error=ERROR)
    assert result.as_json() == received
    assert RunResult(status=RunStatus.SUCCESS, thread_status=None).as_json() == b"null"
