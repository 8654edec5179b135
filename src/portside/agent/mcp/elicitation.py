"""Questions of an interrupted graph to the person who uses a client: the protocol's elicitation.

The server sends the question in the stream of its call. The client answers by a separate request, which may reach any
server of the database, and becomes a run on the call's thread. The question's id contains the id of that future run, so
the server that holds the call can wait for it. A refusal deletes the thread, and the waiting server finds it gone. The
session id says that a client accepts questions; the server keeps no session.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import msgspec

from portside.agent.access.service import Access
from portside.agent.mcp.results import STREAM_MODES
from portside.agent.runs.errors import RunNotFound, ThreadBusy
from portside.agent.runs.service import ELSEWHERE_POLL_S, Awaited, Runs
from portside.agent.threads import records
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import Caller
from portside.agent.types.runs import Command, Run, RunCreate
from portside.executor.requests import INTERRUPT
from portside.kernel.codec import load
from portside.kernel.db import Database
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from portside.kernel.user_json import dump_user

CALL_METADATA = {"mcp.call": True}
SESSION_HEADER = "mcp-session-id"
SESSION_PREFIX = "elicitation-"
ANSWER_WITHIN_S = 3600.0
ANSWER = "answer"
_ID_PREFIX = "question"
_PRIMITIVES = frozenset({"string", "number", "integer", "boolean"})
_SCHEMA_KEYS = ("response_schema", "requestedSchema", "schema")
_MESSAGE_KEYS = ("message", "question", "prompt", "description", "text")

Plain = dict[str, Any]


class Question(NamedTuple):
    """A question that a run asks, and the run that answers it."""

    thread_id: UUID
    asked_by: UUID
    answered_by: UUID
    interrupt_id: str

    @property
    def request_id(self) -> str:
        """The id of the request to the client."""
        return f"{_ID_PREFIX}:{self.thread_id}:{self.asked_by}:{self.answered_by}:{self.interrupt_id}"

    @classmethod
    def read(cls, request_id: Any) -> "Question | None":
        """Return the question of a request's id; None if the id is not that of a question."""
        parts = request_id.split(":", 4) if isinstance(request_id, str) else []
        if len(parts) != 5 or parts[0] != _ID_PREFIX:
            return None

        with suppress(ValueError):
            return cls(UUID(parts[1]), UUID(parts[2]), UUID(parts[3]), parts[4])

        return None


class Form(NamedTuple):
    """The message that a person reads, and the schema of the answer."""

    message: str
    schema: Plain
    is_wrapped: bool

    @classmethod
    def of(cls, interrupt: Plain) -> "Form":
        """Return the form for an interrupt. Where its schema fits no form of the protocol, the answer is a text."""
        value = interrupt.get("value")
        fields = value if isinstance(value, dict) else {}
        schemas = [source[key] for source in (interrupt, fields) for key in _SCHEMA_KEYS if source.get(key)]
        schema: Any = schemas[0] if schemas else None

        if isinstance(value, str):
            message = value
        else:
            texts = (fields[key] for key in _MESSAGE_KEYS if isinstance(fields.get(key), str))
            message = next(texts, None) or dump_user(value).decode()

        if _is_form(schema):
            return cls(message, schema, is_wrapped=False)

        answer: Plain = schema if _is_primitive(schema) else {"type": "string"}
        properties = {ANSWER: {"title": "Answer", **answer}}
        return cls(message, {"type": "object", "properties": properties, "required": [ANSWER]}, is_wrapped=True)

    def answer_in(self, content: Plain) -> Any:
        """Return the answer in a filled form."""
        return content.get(ANSWER) if self.is_wrapped else content


class Questions:
    """The open questions of all calls: accepts answers from clients, and waits for answers."""

    def __init__(self, db: Database, runs: Runs, access: Access) -> None:
        self._db = db
        self._runs = runs
        self._access = access

    async def answer(self, caller: Caller, question: Question, result: Any, request_id: str) -> None:
        """Resume the graph with the answer to a question. A question that is no longer open is ignored.

        Raises the errors of the run.
        """
        with suppress(ThreadNotFound, RunNotFound, ThreadBusy):
            run = await self._runs.get(question.thread_id, question.asked_by)
            interrupt = await self._open_interrupt(question)
            if interrupt is None or not CALL_METADATA.items() <= run.metadata.items():
                return

            if not _is_accepted(result):
                await self._access.authorize_thread(caller, "update", question.thread_id)
                await self.delete_thread(question.thread_id)
                return

            answer = Form.of(interrupt).answer_in(result["content"])
            await self._resume(caller, question, run, answer, request_id)

    async def wait(self, question: Question) -> Run | None:
        """Wait for the run that answers a question; None if it was refused or not answered within an hour."""
        until = time.monotonic() + ANSWER_WITHIN_S
        while time.monotonic() < until:
            # Read before the run is looked up: if a question is closed because it was answered, its run exists by then.
            is_open = await self._open_interrupt(question) is not None
            with suppress(RunNotFound):
                return await self._runs.get(question.thread_id, question.answered_by)

            if not is_open:
                return None

            await asyncio.sleep(ELSEWHERE_POLL_S)

        return None

    async def delete_thread(self, thread_id: UUID) -> None:
        """Delete the thread of a call, and stop its run."""
        with suppress(ThreadNotFound):
            if await records.delete_thread(self._db, thread_id):
                self._runs.wake_workers()

        self._runs.hub.threads_deleted([thread_id])

    async def _resume(self, caller: Caller, question: Question, run: Run, answer: Any, request_id: str) -> None:
        body = RunCreate(
            assistant_id=str(run.assistant_id),
            command=Command(resume={question.interrupt_id: answer}),
            context=run.kwargs.get("context"),
            metadata=dict(CALL_METADATA),
            stream_mode=STREAM_MODES,
            # The run may end before the server that holds the call finds it and reports its progress.
            stream_resumable=True,
            multitask_strategy="reject",
            strict_resume=True,
        )

        grant = await self._access.authorize_run(caller, question.thread_id, body)
        # An idempotency key: if a client sends its answer twice, the first run may be over, and the thread free again.
        grant = grant._replace(run_id=question.answered_by, key=str(question.answered_by))
        try:
            await self._runs.create(question.thread_id, body, request_id, awaited=Awaited.NOTHING, grant=grant)
        except Invalid:
            # Another answer to the same question may have been first.
            with suppress(RunNotFound):
                await self._runs.get(question.thread_id, question.answered_by)
                return

            raise

    async def _open_interrupt(self, question: Question) -> Plain | None:
        """Return the interrupt of a question while the thread still waits at it."""
        try:
            thread = await records.get_thread(self._db, question.thread_id)
        except ThreadNotFound:
            return None

        by_task = load(thread.interrupts) if isinstance(thread.interrupts, msgspec.Raw) else {}
        interrupts: list[Plain] = [item for task_interrupts in (by_task or {}).values() for item in task_interrupts]
        return next((item for item in interrupts if item.get("id") == question.interrupt_id), None)


def first_question(run: Run, values: Any) -> tuple[Question, Plain] | None:
    """Return the first question of an interrupted run, with the parameters of its request; None if there is none."""
    interrupts = values.get(INTERRUPT) if isinstance(values, dict) else None
    interrupt = interrupts[0] if isinstance(interrupts, list) and interrupts else None
    if not isinstance(interrupt, dict) or not isinstance(interrupt.get("id"), str):
        return None

    form = Form.of(interrupt)
    question = Question(run.thread_id, run.run_id, uuid7(), interrupt["id"])
    return question, {"message": form.message, "requestedSchema": form.schema}


def session_headers(capabilities: Any) -> dict[str, str]:
    """Return the session header for a client that accepts forms; other clients get no session."""
    elicitation = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
    if not isinstance(elicitation, dict) or (elicitation and "form" not in elicitation):
        return {}

    return {"Mcp-Session-Id": f"{SESSION_PREFIX}{uuid4().hex}"}


def accepts_questions(headers: Mapping[str, str]) -> bool:
    """Whether the client of a request said at `initialize` that it accepts questions."""
    return headers.get(SESSION_HEADER, "").startswith(SESSION_PREFIX)


def _is_accepted(result: Any) -> bool:
    return isinstance(result, dict) and result.get("action") == "accept" and isinstance(result.get("content"), dict)


def _is_form(schema: Any) -> bool:
    """Whether a schema is a form of the protocol: an object whose members are primitive values."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False

    properties = schema.get("properties")
    return isinstance(properties, dict) and bool(properties) and all(map(_is_primitive, properties.values()))


def _is_primitive(schema: Any) -> bool:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return isinstance(kind, str) and kind in _PRIMITIVES
