"""The first and the last thing that those learn of a run who follow its events."""

from portside.agent.queue.lifecycle import ClaimedRun, Ending
from portside.agent.streams.reach import Start
from portside.agent.streams.threads import Asked, RunEnd


def start_of(run: ClaimedRun) -> Start:
    """Return what is told of a run that begins."""
    return Start(
        run_id=run.run_id,
        thread_id=run.thread_id,
        graph_id=_graph_id(run),
        attempt=run.attempt,
        is_resumable=bool(run.kwargs.get("resumable")),
        is_stateless=run.is_temporary,
        was_begun=run.was_begun,
        is_foreign=run.is_foreign,
    )


def end_of(run: ClaimedRun, ending: Ending | None) -> RunEnd | None:
    """Return what is told of a run that ended; nothing when it goes on elsewhere.

    One that was cancelled has failed for those who wait: `interrupted` means that the graph waits for an answer.
    """
    if ending is None:
        return None
    if ending.status != "success":
        error = ending.error or {}
        text = error.get("message") or error.get("error") or f"the run ended with status {ending.status}"
        return RunEnd("failed", _graph_id(run), text)
    if ending.thread_status != "interrupted":
        return RunEnd("completed", _graph_id(run))
    questions = [question for waiting in (ending.interrupts or {}).values() for question in waiting]
    asked = tuple(Asked(str(question["id"]), question.get("value")) for question in questions)
    return RunEnd("interrupted", _graph_id(run), asked=asked)


def _graph_id(run: ClaimedRun) -> str:
    return str(run.kwargs["config"]["configurable"]["graph_id"])
