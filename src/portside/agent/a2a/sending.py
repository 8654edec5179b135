"""Messages become runs: of a new task, or of one that waits for an answer."""

from typing import Any, NamedTuple
from uuid import UUID

from portside.agent.a2a.agents import Agent, Agents
from portside.agent.a2a.conversations import MESSAGE_ID, TASK_START, task_id_of
from portside.agent.a2a.errors import BadParams, NoPush, NoTask, Unsupported, WrongMedia
from portside.agent.a2a.inputs import answer_with, command_of, input_of, label
from portside.agent.a2a.params import Configuration, Send
from portside.agent.a2a.parts import read_parts
from portside.agent.a2a.tasks import TERMINAL, Standing, Tasks
from portside.agent.access.service import Access
from portside.agent.runs.following import Made
from portside.agent.runs.service import Awaited, Runs
from portside.agent.sql import sql
from portside.agent.threads import records
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import Caller
from portside.agent.types.runs import RunCreate
from portside.kernel.db import Database
from portside.kernel.ids import uuid7

OWN = "a2a."
NO_CONTEXT = "Failed to create run: Thread or assistant not found."
MODES = ["messages-tuple", "values"]
_MAKES = frozenset({"text/plain", "application/json", "text/*", "application/*", "*/*", "text", "data"})

Plain = dict[str, Any]


class Asker(NamedTuple):
    """Who calls, which agent, and under which id of the request."""

    caller: Caller
    agent: Agent
    request_id: str


class Started(NamedTuple):
    """A run that was made of a message, and its task's place."""

    made: Made
    thread_id: UUID
    start: str


class Sending:
    """Starts runs."""

    def __init__(self, db: Database, runs: Runs, access: Access, agents: Agents, tasks: Tasks) -> None:
        self._db, self._runs, self._access, self._agents, self._tasks = db, runs, access, agents, tasks

    async def start(self, asker: Asker, send: Send, *, awaited: Awaited, is_resumable: bool) -> Started:
        """Make a run of a message. Raises CallFailed, and PortsideError of the run or of access."""
        _judge(send.configuration)
        parts = read_parts(send.message.parts)
        if not parts and send.command is None:
            raise BadParams("Invalid params: params.message.parts: a message has at least one part")
        body = RunCreate(
            assistant_id=str(asker.agent.assistant_id),
            context=send.context,
            metadata={key: value for key, value in (send.metadata or {}).items() if not key.startswith(OWN)},
            stream_mode=MODES,
            stream_resumable=is_resumable,
        )
        thread_id, standing = await self._place(asker, send, parts)
        if standing is not None and standing.state == "input-required":
            await self._resume(body, send, parts, standing.thread_id)
            return await self._run(asker, send, body, standing, awaited)
        await self._begin(asker.agent, body, send, parts)
        started = await self._run(asker, send, body, thread_id, awaited)
        if standing is not None:
            values = {"thread_id": standing.thread_id, "run_id": standing.run_id, "is_superseded": True}
            await self._db.fetchval(sql.a2a_close_task, **values)
        return started

    async def _place(self, asker: Asker, send: Send, parts: list[Plain]) -> tuple[UUID, Standing | None]:
        """Return the thread of a message, and the task that it goes on with, or takes the place of."""
        message = send.message
        if message.task_id:
            thread_id, start = read_task_id(message.task_id)
            if message.context_id and message.context_id != str(thread_id):
                raise BadParams("Invalid params: params.message.contextId: the task is of another context")
            await self._access.see_thread(asker.caller, "read", thread_id)
            standing = await self._tasks.find(asker.agent.assistant_id, thread_id, start)
            if standing.state in TERMINAL:
                raise Unsupported("A terminal task cannot accept another message")
            if standing.state != "input-required":
                raise Unsupported("The task is being worked on; send the message when it is done or asks for input")
            return thread_id, standing
        if not message.context_id:
            return uuid7(), None
        thread_id = _context(message.context_id)
        row = await self._db.fetchrow(sql.a2a_waiting, thread_id=thread_id, assistant_id=asker.agent.assistant_id)
        if row is None:
            return thread_id, None
        await self._see_context(asker.caller, thread_id)
        standing = await self._tasks.find(asker.agent.assistant_id, thread_id, row["start"])
        is_command = send.command is not None or command_of(send, parts) is not None
        return thread_id, standing if is_command else standing._replace(state="canceled")

    async def _see_context(self, caller: Caller, thread_id: UUID) -> None:
        """Ask for a context that waits, before anything about it is told. Raises BadParams as for any other's."""
        try:
            await self._access.see_thread(caller, "read", thread_id)
        except ThreadNotFound as exc:
            raise BadParams(NO_CONTEXT) from exc

    async def _begin(self, agent: Agent, body: RunCreate, send: Send, parts: list[Plain]) -> None:
        body.on_not_exist = "create"
        body.command = command_of(send, parts)
        if body.command is None:
            body.input = input_of(send.message, parts, (await self._agents.skill(agent)).fields)

    async def _resume(self, body: RunCreate, send: Send, parts: list[Plain], thread_id: UUID) -> None:
        questions = await records.open_questions(self._db, thread_id)
        body.command = answer_with(send, parts, questions)
        body.multitask_strategy = "reject"
        body.strict_resume = bool(questions)

    async def _run(
        self, asker: Asker, send: Send, body: RunCreate, place: UUID | Standing, awaited: Awaited
    ) -> Started:
        thread_id = place if isinstance(place, UUID) else place.thread_id
        grant = await self._access.start_run(asker.caller, thread_id, body)
        run_id = grant.run_id or uuid7()
        start = str(run_id) if isinstance(place, UUID) else place.start
        label(body.input, send.message, start)
        body.metadata = {**(body.metadata or {}), TASK_START: start, MESSAGE_ID: send.message.message_id}
        grant = grant._replace(run_id=run_id)
        try:
            made = await self._runs.create(thread_id, body, asker.request_id, grant=grant, awaited=awaited)
        except ThreadNotFound as exc:
            # It is there, and not for this caller: what a client names as a context it may not use.
            if isinstance(place, UUID):
                raise BadParams(NO_CONTEXT) from exc
            raise
        return Started(made, thread_id, start)


def read_task_id(task_id: str) -> tuple[UUID, str]:
    """Take the id of a task apart. Raises NoTask for what is none."""
    context, _, start = task_id.partition(":")
    try:
        thread_id, run_id = UUID(context), UUID(start)
    except ValueError:
        raise NoTask from None
    if task_id != task_id_of(thread_id, run_id):
        raise NoTask
    return thread_id, start


def _context(context_id: str) -> UUID:
    try:
        return UUID(context_id)
    except ValueError:
        raise BadParams("Failed to create run: Invalid thread ID") from None


def _judge(configuration: Configuration | None) -> None:
    """Refuse what an answer cannot be like. Raises NoPush and WrongMedia."""
    if configuration is None:
        return
    if configuration.push_notification_config or configuration.task_push_notification_config:
        raise NoPush
    modes = [mode.lower() for mode in configuration.accepted_output_modes or ()]
    if modes and not _MAKES.intersection(modes):
        raise WrongMedia("The agent answers in text/plain and application/json")
