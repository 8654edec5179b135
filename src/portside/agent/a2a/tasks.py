"""Tasks: their state, history and artifacts, lists of them, and their updates as a stream.

A task has the state of its last run. The thread keeps the values of the run that ended last; for an earlier run the
server reads the checkpoint that the run left, unless its reply is still among the thread's messages.
"""

import base64
import binascii
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import msgspec

from portside.agent.a2a.messages import (
    MESSAGE_ID,
    HistoryMessage,
    ToolResults,
    as_dict,
    build_history,
    data_part,
    find_reply,
    format_task_id,
    text_part,
)
from portside.agent.a2a.params import ListTasksParams
from portside.agent.a2a.rpc import InvalidParams, TaskNotFound, UnsupportedOperation
from portside.agent.a2a.versions import to_old_state
from portside.agent.runs.service import Runs
from portside.agent.sql import sql
from portside.agent.threads import records
from portside.agent.threads.states import States
from portside.agent.types.access import Filter
from portside.agent.types.runs import Run
from portside.agent.types.states import HistorySearch
from portside.executor.requests import UNKNOWN_INTERRUPT
from portside.kernel.clock import in_utc, iso, now
from portside.kernel.codec import load
from portside.kernel.db import Database, Record

ANY_STATE = frozenset({"", "unspecified"})
ANSWERED = "The question has been answered by another message"
COMPLETED = "Task completed successfully"
DEFAULT_PAGE_SIZE = 50
MESSAGES = "messages"
_INTERRUPT_FIELDS = frozenset({"id", "value", "response_schema"})
_AGENT_TYPES = frozenset({"ai", "AIMessageChunk"})

Plain = dict[str, Any]


class StateName(StrEnum):
    """The states of tasks, as version 0.3 of the protocol and the database function `a2a_state` spell them."""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    # Clients may ask for tasks with these, and no task has them.
    REJECTED = "rejected"
    AUTH_REQUIRED = "auth-required"


ACTIVE = frozenset({StateName.SUBMITTED, StateName.WORKING})
TERMINAL = frozenset({StateName.COMPLETED, StateName.FAILED, StateName.CANCELED})


class TaskState(NamedTuple):
    """The state of a task, which is that of its last run."""

    thread_id: UUID
    context_id: str
    start: str
    """The id of the task's first run."""
    run_id: UUID
    """The task's last run."""
    state: StateName
    updated_at: str
    is_last: bool
    """Whether the thread's values are those of the last run."""

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return format_task_id(self.thread_id, self.start)

    @property
    def ids(self) -> Plain:
        """The ids of the task and of its context, as messages and events carry them."""
        return {"taskId": self.task_id, "contextId": self.context_id}

    @classmethod
    def of(cls, row: Record) -> "TaskState":
        """Return the state that a row of the queries `a2a_task` and `a2a_tasks` describes."""
        return cls(
            thread_id=row["thread_id"],
            context_id=row["context_id"] or str(row["thread_id"]),
            start=row["start"],
            run_id=row["run_id"],
            state=StateName(row["state"]),
            updated_at=iso(row["updated_at"]),
            is_last=row["is_last"],
        )


class HistoryOptions(NamedTuple):
    """Which messages of the history to return."""

    length: int | None = None
    """How many at most; None returns all."""
    is_of_task: bool = False
    """Only those of the task, not those of its whole context."""


class TaskPage(NamedTuple):
    """A page of tasks."""

    tasks: list[TaskState]
    total: int
    """The number of tasks on all pages."""
    size: int
    """How many tasks a page may have."""
    next_token: str
    """The token of the next page; empty on the last one."""


class Tasks:
    """Reads tasks."""

    def __init__(self, db: Database, runs: Runs, states: States, tool_results: ToolResults) -> None:
        self._db = db
        self._runs = runs
        self._states = states
        self._tool_results = tool_results

    async def find(self, assistant_id: UUID, thread_id: UUID, start: str) -> TaskState:
        """Return the state of an assistant's task. Raises TaskNotFound."""
        row = await self._db.fetchrow(
            sql.a2a_task,
            assistant_id=assistant_id,
            thread_id=thread_id,
            start=start,
            late_error=UNKNOWN_INTERRUPT,
        )
        if row is None:
            raise TaskNotFound

        return TaskState.of(row)

    async def find_after(self, assistant_id: UUID, thread_id: UUID, run_id: UUID, start: str) -> TaskState:
        """Return the state of a task after one of its runs.

        Raises TaskNotFound, and UnsupportedOperation if the run was a second answer to the same question.
        """
        state = await self.find(assistant_id, thread_id, start)
        if state.run_id != run_id:
            run = await self._runs.get(thread_id, run_id)
            if run.error is not None and run.error.get("error") == UNKNOWN_INTERRUPT:
                raise UnsupportedOperation(ANSWERED)

        return state

    async def list_page(
        self, assistant_id: UUID, params: ListTasksParams, thread_id: UUID | None, access: Filter | None
    ) -> TaskPage:
        """Return a page of an assistant's tasks, of one thread or of all that match the filter.

        Raises InvalidParams.
        """
        size = params.page_size or DEFAULT_PAGE_SIZE
        before_at, before_id = _parse_page_token(params.page_token) if params.page_token else (None, None)
        rows = await self._db.fetch(
            sql.a2a_tasks,
            assistant_id=assistant_id,
            thread_id=thread_id,
            state=_parse_state(params.status),
            after=_parse_time(params.status_timestamp_after) if params.status_timestamp_after else None,
            access=access,
            late_error=UNKNOWN_INTERRUPT,
            before_at=before_at,
            before_id=before_id,
            limit=size + 1,
        )

        page_rows = rows[:size]
        next_token = ""
        if len(rows) > size:
            last = page_rows[-1]
            next_token = format_page_token(last["updated_at"], last["run_id"])

        return TaskPage(
            tasks=[TaskState.of(row) for row in page_rows],
            total=rows[0]["total"] if rows else 0,
            size=size,
            next_token=next_token,
        )

    async def describe(
        self, assistant_id: UUID, state: TaskState, options: HistoryOptions, *, with_artifacts: bool = True
    ) -> Plain:
        """Return a task in the form of version 0.3. Raises ThreadNotFound and RunNotFound if it was deleted."""
        task: Plain = {"kind": "task", "id": state.task_id, "contextId": state.context_id}
        if options.length == 0 and not with_artifacts:
            return task | {"status": {"state": state.state, "timestamp": state.updated_at}}

        thread = await records.get_thread(self._db, state.thread_id)
        run = await self._runs.get(state.thread_id, state.run_id)
        values = _load_raw(thread.values) or {}
        history = self._build_history(_add_input(values, run, state), state)

        if options.length != 0:
            messages = [item.message for item in history if not options.is_of_task or item.start == state.start]
            messages = messages or await self._list_inputs(assistant_id, state)
            task["history"] = messages[-options.length :] if options.length else messages

        interrupts_by_task = _load_raw(thread.interrupts) or {}
        interrupts = [interrupt for interrupts in interrupts_by_task.values() for interrupt in interrupts]
        task["status"] = _build_status(state, run, interrupts)

        if with_artifacts:
            artifact = await self._find_artifact(state, history, values, interrupts)
            if artifact is not None:
                task["artifacts"] = [artifact]

        return task

    def _build_history(self, values: Any, state: TaskState) -> list[HistoryMessage]:
        return build_history(values, state.thread_id, self._tool_results, state.context_id)

    async def _find_artifact(
        self, state: TaskState, history: list[HistoryMessage], values: Any, interrupts: list[Plain]
    ) -> Plain | None:
        if state.state is StateName.INPUT_REQUIRED:
            questions = [
                data_part({key: value for key, value in interrupt.items() if key in _INTERRUPT_FIELDS})
                for interrupt in interrupts
            ]
            return _build_artifact(state, "Interrupt", "Agent requires input to continue", questions)

        if state.state is not StateName.COMPLETED:
            return None

        reply = find_reply(history, state.start)
        if reply is None:
            if not state.is_last:
                values = await self._read_values(state)

            reply = find_reply(self._build_history(values, state), state.start)

        parts = _read_output(values) if reply is None else reply["parts"]
        return _build_artifact(state, "Assistant Response", "What the agent answered", parts)

    async def _read_values(self, state: TaskState) -> Any:
        """Return the values at the end of the task's last run; none if its checkpoints were pruned."""
        search = HistorySearch(limit=1, metadata={"run_id": str(state.run_id)})
        states = load(await self._states.history(state.thread_id, search))
        return states[0]["values"] if states else {}

    async def _list_inputs(self, assistant_id: UUID, state: TaskState) -> list[Plain]:
        """Return the inputs of a task's runs as messages, for a graph that keeps none itself."""
        rows = await self._db.fetch(
            sql.a2a_runs_of_task, assistant_id=assistant_id, thread_id=state.thread_id, start=state.start
        )
        runs = [await self._runs.get(state.thread_id, row["run_id"]) for row in rows]
        return [_build_input_message(run, state) for run in runs]


def build_agent_message(state: TaskState, message_id: str, parts: list[Plain]) -> Plain:
    """Return a message of the agent in a task."""
    return {"kind": "message", "role": "agent", "parts": parts, "messageId": message_id, **state.ids}


def add_completion(state: TaskState, task: Plain) -> Plain:
    """Add the message of a completed task, which `tasks/get` alone returns."""
    if state.state is StateName.COMPLETED:
        message = build_agent_message(state, f"{state.run_id}-status", [text_part(COMPLETED)])
        task["status"] = {**task["status"], "message": message}

    return task


def _add_input(values: Any, run: Run, state: TaskState) -> Any:
    """Add the input of an active run to the thread's values, which do not hold it before the run's first step."""
    run_input = run.kwargs["input"]
    if state.state not in ACTIVE or not isinstance(run_input, dict) or not isinstance(values, dict):
        return values

    new = run_input.get("messages")
    if not isinstance(new, list):
        return values

    stored = values.get("messages")
    if not isinstance(stored, list):
        stored = []

    stored_ids = {as_dict(message).get("id") for message in stored}
    missing = [message for message in new if as_dict(message).get("id") not in stored_ids]

    return {**values, "messages": [*stored, *missing]}


def _build_status(state: TaskState, run: Run, interrupts: list[Plain]) -> Plain:
    status: Plain = {"state": state.state, "timestamp": state.updated_at}
    parts: list[Plain] = []

    if state.state is StateName.FAILED:
        error = run.error or {}
        parts = [text_part(str(error.get("message") or error.get("error") or "The run failed"))]
    elif state.state is StateName.INPUT_REQUIRED:
        values = [interrupt.get("value") for interrupt in interrupts]
        parts = [text_part(value) if isinstance(value, str) else data_part(value) for value in values]

    if parts:
        status["message"] = build_agent_message(state, str(uuid5(state.run_id, state.state)), parts)

    return status


def _build_artifact(state: TaskState, name: str, description: str, parts: list[Plain]) -> Plain | None:
    if not parts:
        return None

    artifact_id = str(uuid5(state.run_id, name))
    return {"artifactId": artifact_id, "name": name, "description": description, "parts": parts}


def _read_output(values: Any) -> list[Plain]:
    """Return the output of a graph that replied with no message."""
    if isinstance(values, dict):
        values = {key: value for key, value in values.items() if key != "messages"}
    return [data_part(values)] if values not in (None, {}) else []


def _build_input_message(run: Run, state: TaskState) -> Plain:
    command = run.kwargs["command"]
    if command is None:
        contents = [run.kwargs["input"]]
    else:
        resume = command.get("resume")
        is_by_interrupt = isinstance(resume, dict) and run.kwargs.get("strict_resume")
        contents = list(resume.values()) if is_by_interrupt else [resume]

    parts = [text_part(content) if isinstance(content, str) else data_part(content) for content in contents]
    message_id = run.metadata.get(MESSAGE_ID) or str(uuid5(run.run_id, "message"))
    return build_agent_message(state, message_id, parts) | {"role": "user"}


def _load_raw(raw: Any) -> Any:
    return load(raw) if isinstance(raw, msgspec.Raw) else None


# Pages of tasks.


def _parse_state(status: str | None) -> StateName | None:
    state = to_old_state(status or "")
    if state in ANY_STATE:
        return None

    try:
        return StateName(state)
    except ValueError:
        names = ", ".join(sorted(StateName))
        raise InvalidParams(f"Invalid params: params.status: unknown state; use one of {names}") from None


def _parse_time(text: str) -> datetime:
    try:
        return in_utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise InvalidParams("Invalid params: params.statusTimestampAfter: expected a time in ISO 8601") from None


def format_page_token(updated_at: datetime, run_id: UUID) -> str:
    """Return the token of the page that begins after a task."""
    return base64.urlsafe_b64encode(f"{updated_at.isoformat()} {run_id}".encode()).decode()


def _parse_page_token(token: str) -> tuple[datetime, UUID]:
    try:
        updated_at, _, run_id = base64.urlsafe_b64decode(token).decode().partition(" ")
        return in_utc(datetime.fromisoformat(updated_at)), UUID(run_id)
    except (ValueError, OverflowError, binascii.Error):
        raise InvalidParams("Invalid params: params.pageToken: use nextPageToken of an earlier page") from None


# A task as a stream: the task, the agent's messages as they grow, its artifacts, and its last state.


async def iterate_message_updates(source: AsyncIterator[bytes], state: TaskState) -> AsyncIterator[Plain]:
    """Yield a status update for each message that grew, out of the events of a run.

    Each update has the whole message so far, so a client that joins late misses nothing, and a slow client gets fewer
    updates that are all up to date.
    """
    texts: dict[str, str] = {}
    async for chunk in source:
        grown: dict[str, None] = {}
        for name, data in _split_events(chunk):
            if name != MESSAGES:
                continue

            message_id = _append_piece(texts, load(data)[0])
            if message_id:
                grown[message_id] = None

        for message_id in grown:
            message = build_agent_message(state, message_id, [text_part(texts[message_id])])
            status = {"state": StateName.WORKING, "timestamp": iso(now()), "message": message}
            yield _build_status_update(state, status, is_final=False)


def iterate_final_updates(state: TaskState, task: Plain) -> Iterator[Plain]:
    """Yield the artifacts of a task and its last state."""
    for artifact in task.get("artifacts", ()):
        yield {"kind": "artifact-update", **state.ids, "artifact": artifact, "append": False, "lastChunk": True}
    yield _build_status_update(state, task["status"], is_final=True)


def _build_status_update(state: TaskState, status: Plain, *, is_final: bool) -> Plain:
    return {"kind": "status-update", **state.ids, "status": status, "final": is_final}


def _append_piece(texts: dict[str, str], piece: Any) -> str | None:
    """Append a piece to its message; return the id of the message if it grew."""
    if not isinstance(piece, dict) or piece.get("type") not in _AGENT_TYPES:
        return None

    text = _join_text(piece.get("content"))
    if not text:
        return None

    message_id = str(piece.get("id"))
    is_chunk = piece["type"] == "AIMessageChunk"
    texts[message_id] = texts.get(message_id, "") + text if is_chunk else text

    return message_id


def _join_text(content: Any) -> str:
    if isinstance(content, str):
        return content

    blocks = content if isinstance(content, list) else ()
    texts = (block.get("text") if isinstance(block, dict) else block for block in blocks)
    return "".join(text for text in texts if isinstance(text, str))


def _split_events(chunk: bytes) -> Iterator[tuple[str, bytes]]:
    """Split server-sent events into name and data."""
    for frame in chunk.split(b"\r\n\r\n"):
        name, separator, rest = frame.removeprefix(b"event: ").partition(b"\r\ndata: ")
        if separator:
            yield name.decode(), rest.partition(b"\r\n")[0]
