"""Tasks as the protocol shows them: where they stand, what was said, and what came of them.

A task stands where its last run does. What the thread keeps is the last ended run's; of an earlier one the checkpoint
that it left is read, where what it answered is not among the thread's messages.
"""

from typing import Any, NamedTuple
from uuid import UUID, uuid5

import msgspec

from portside.agent.a2a.conversations import (
    MESSAGE_ID,
    Said,
    Tools,
    answer_of,
    conversation,
    of_task,
    task_id_of,
)
from portside.agent.a2a.errors import NoTask, Unsupported
from portside.agent.a2a.parts import data_part, dict_of, text_part
from portside.agent.graphs.execute import UNKNOWN_INTERRUPT
from portside.agent.runs.service import Runs
from portside.agent.sql import sql
from portside.agent.threads import records
from portside.agent.threads.states import States
from portside.agent.types.runs import Run
from portside.agent.types.threads import HistorySearch
from portside.kernel.clock import iso
from portside.kernel.codec import dump_user, load
from portside.kernel.db import Database, Record

ACTIVE = frozenset({"submitted", "working"})
TERMINAL = frozenset({"completed", "failed", "canceled"})
COMPLETED = "Task completed successfully"

Plain = dict[str, Any]


class Standing(NamedTuple):
    """Where a task stands: its state, its last run, and whether what the thread keeps is that run's."""

    thread_id: UUID
    start: str
    run_id: UUID
    state: str
    updated_at: str
    is_last: bool

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return task_id_of(self.thread_id, self.start)

    @classmethod
    def of(cls, row: Record) -> "Standing":
        """Read a row."""
        return cls(row["thread_id"], row["start"], row["run_id"], row["state"], iso(row["updated_at"]), row["is_last"])


class Wish(NamedTuple):
    """How much of the history to tell: how many messages at most, and whether of the task alone."""

    length: int | None = None
    of_task: bool = False


class Tasks:
    """Reads tasks."""

    def __init__(self, db: Database, runs: Runs, states: States, tools: Tools) -> None:
        self._db, self._runs, self._states, self._tools = db, runs, states, tools

    async def find(self, assistant_id: UUID, thread_id: UUID, start: str) -> Standing:
        """Return where a task of an assistant stands. Raises NoTask."""
        names = {"assistant_id": assistant_id, "thread_id": thread_id, "start": start}
        row = await self._db.fetchrow(sql.a2a_task, **names, came_late=UNKNOWN_INTERRUPT)
        if row is None:
            raise NoTask
        return Standing.of(row)

    async def after(self, assistant_id: UUID, thread_id: UUID, run_id: UUID, start: str) -> Standing:
        """Return where a task stands after one of its runs.

        Raises NoTask, and Unsupported where the run was an answer that came after another one.
        """
        standing = await self.find(assistant_id, thread_id, start)
        if standing.run_id != run_id:
            error = (await self._runs.get(thread_id, run_id)).error or {}
            if error.get("error") == UNKNOWN_INTERRUPT:
                raise Unsupported("The question has been answered by another message")
        return standing

    async def show(self, assistant_id: UUID, standing: Standing, wish: Wish, *, with_artifacts: bool = True) -> Plain:
        """Return a task. Raises ThreadNotFound and RunNotFound when it goes meanwhile."""
        if wish.length == 0 and not with_artifacts:
            return _named(standing) | {"status": _plain_status(standing)}
        thread = await records.get_thread(self._db, standing.thread_id)
        run = await self._runs.get(standing.thread_id, standing.run_id)
        values = _loaded(thread.values) or {}
        said = conversation(_with_input(values, run, standing), standing.thread_id, self._tools)
        shown = _named(standing)
        if wish.length != 0:
            told = [each.message for each in (of_task(said, standing.start) if wish.of_task else said)]
            told = told or await self._told_by_runs(assistant_id, standing)
            shown["history"] = told[-wish.length :] if wish.length else told
        questions = [one for some in (_loaded(thread.interrupts) or {}).values() for one in some]
        shown["status"] = _status(standing, run, questions)
        if with_artifacts and (artifact := await self._outcome(standing, said, values, questions)):
            shown["artifacts"] = [artifact]
        return shown

    async def _outcome(self, standing: Standing, said: list[Said], values: Any, questions: list[Plain]) -> Plain | None:
        if standing.state == "input-required":
            return _asked(standing, questions)
        if standing.state != "completed":
            return None
        answer = answer_of(said, standing.start)
        if answer is None:
            values = values if standing.is_last else await self._left(standing)
            answer = answer_of(conversation(values, standing.thread_id, self._tools), standing.start)
        parts = _output(values) if answer is None else answer["parts"]
        return _artifact(standing, "Assistant Response", "What the agent answered", parts) if parts else None

    async def _left(self, standing: Standing) -> Any:
        """Return the values that a run left; nothing where its checkpoints are gone."""
        search = HistorySearch(limit=1, metadata={"run_id": str(standing.run_id)})
        states = await self._states.history(standing.thread_id, search)
        return load(dump_user(states[0]["values"])) if states else {}

    async def _told_by_runs(self, assistant_id: UUID, standing: Standing) -> list[Plain]:
        """Return what a client said to a graph that keeps no messages: what its runs were made with."""
        rows = await self._db.fetch(
            sql.a2a_runs_of_task, assistant_id=assistant_id, thread_id=standing.thread_id, start=standing.start
        )
        runs = [await self._runs.get(standing.thread_id, row["run_id"]) for row in rows]
        return [_told_by(run, standing) for run in runs]


def agent_message(standing: Standing, message_id: str, parts: list[Plain]) -> Plain:
    """Make a message of the agent in a task."""
    about = {"taskId": standing.task_id, "contextId": str(standing.thread_id)}
    return {"kind": "message", "role": "agent", "parts": parts, "messageId": message_id, **about}


def _with_input(values: Any, run: Run, standing: Standing) -> Any:
    """Add to what a thread keeps what its run under way was asked: a run that waits or goes on has kept nothing yet."""
    asked = run.kwargs["input"]
    new = asked.get("messages") if standing.state in ACTIVE and isinstance(asked, dict) else None
    if not isinstance(new, list) or not isinstance(values, dict):
        return values
    kept = values.get("messages")
    kept = kept if isinstance(kept, list) else []
    known = {dict_of(message).get("id") for message in kept}
    return {**values, "messages": [*kept, *(message for message in new if dict_of(message).get("id") not in known)]}


def _named(standing: Standing) -> Plain:
    return {"kind": "task", "id": standing.task_id, "contextId": str(standing.thread_id)}


def _plain_status(standing: Standing) -> Plain:
    return {"state": standing.state, "timestamp": standing.updated_at}


def _status(standing: Standing, run: Run, questions: list[Plain]) -> Plain:
    status = _plain_status(standing)
    parts: list[Plain] = []
    if standing.state == "failed":
        error = run.error or {}
        parts = [text_part(str(error.get("message") or error.get("error") or "The run failed"))]
    elif standing.state == "input-required":
        parts = [
            text_part(asked) if isinstance(asked := one.get("value"), str) else data_part(asked) for one in questions
        ]
    if parts:
        message_id = str(uuid5(standing.run_id, standing.state))
        status["message"] = agent_message(standing, message_id, parts)
    return status


def _asked(standing: Standing, questions: list[Plain]) -> Plain | None:
    parts = [data_part({key: value for key, value in one.items() if key in _OF_QUESTIONS}) for one in questions]
    return _artifact(standing, "Interrupt", "Agent requires input to continue", parts) if parts else None


_OF_QUESTIONS = frozenset({"id", "value", "response_schema"})


def _artifact(standing: Standing, name: str, description: str, parts: list[Plain]) -> Plain:
    artifact_id = str(uuid5(standing.run_id, name))
    return {"artifactId": artifact_id, "name": name, "description": description, "parts": parts}


def _output(values: Any) -> list[Plain]:
    """Return what a graph without messages answered, which is its output."""
    if isinstance(values, dict):
        values = {key: value for key, value in values.items() if key != "messages"}
    return [data_part(values)] if values not in (None, {}) else []


def _told_by(run: Run, standing: Standing) -> Plain:
    command, asked = run.kwargs["command"], run.kwargs["input"]
    if command is not None:
        given = command.get("resume")
        answers = list(given.values()) if isinstance(given, dict) and run.kwargs.get("strict_resume") else [given]
    else:
        answers = [asked]
    parts = [text_part(each) if isinstance(each, str) else data_part(each) for each in answers]
    message_id = run.metadata.get(MESSAGE_ID) or str(uuid5(run.run_id, "message"))
    return agent_message(standing, message_id, parts) | {"role": "user"}


def _loaded(raw: Any) -> Any:
    """Return JSON that a thread is shown with; nothing where there is none yet."""
    return load(raw) if isinstance(raw, msgspec.Raw) else None
