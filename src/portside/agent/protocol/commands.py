"""Acting on the commands of the protocol: start a run, answer a question, look at the state (contract: section 13.1).

`input.inject` and `subscription.reconnect` are in the specification and have no meaning there that a thread's queue of
runs could give them; they are answered like any command that is not known.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from portside.agent.graphs.events import STREAM_PROTOCOL
from portside.agent.protocol.doors import Door
from portside.agent.protocol.envelopes import Command, NoCommand, answer, read_command, refuse
from portside.agent.protocol.errors import CommandFailed, failure_of
from portside.agent.protocol.params import (
    GetTree,
    InputRespond,
    ListCheckpoints,
    RunStart,
    StateFork,
    StateGet,
    Unsubscribe,
    read_params,
)
from portside.agent.protocol.session import Session
from portside.agent.protocol.subscriptions import Subscriptions
from portside.agent.runs.errors import ThreadBusy
from portside.agent.runs.service import Runs
from portside.agent.threads import records
from portside.agent.threads.reading import CheckpointNotFound
from portside.agent.threads.records import ThreadNotFound
from portside.agent.threads.states import States
from portside.agent.types.runs import Command as Steering
from portside.agent.types.runs import Run, RunConfig, RunCreate
from portside.agent.types.threads import Checkpoint, HistorySearch, StateAtCheckpoint, Thread
from portside.kernel.codec import load
from portside.kernel.db import Database
from portside.kernel.errors import BadRequest, PortsideError

SPEAKS_PROTOCOL = {STREAM_PROTOCOL: "v2"}
DEFAULT_CHECKPOINTS = 10


class Commands:
    """The commands of one thread, by one client."""

    def __init__(
        self, services: tuple[Database, Runs, States], door: Door, request_id: str, subscriptions: Subscriptions
    ) -> None:
        self._db, self._runs, self._states = services
        self._door, thread_id = door, door.thread_id
        self._thread_id = thread_id
        self._request_id = request_id
        self._subscriptions = subscriptions
        self._actions: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "run.start": self._start,
            "input.respond": self._respond,
            "subscription.subscribe": self._subscribe,
            "subscription.unsubscribe": self._unsubscribe,
            "agent.getTree": self._show_tree,
            "state.get": self._read_state,
            "state.listCheckpoints": self._list_checkpoints,
            "state.fork": self._fork,
        }

    async def act(self, raw: bytes | str) -> tuple[bytes, bool]:
        """Do what a command says; return the answer, and whether it was a command at all.

        Raises BadRequest for what is no JSON, and what the database raises.
        """
        try:
            command = read_command(raw)
        except NoCommand as failure:
            return refuse(failure.id, failure), False
        # What a client sees from here on is news: taken before the command does anything.
        before = (await Session.join(self._runs.hub, self._thread_id)).session.last_seq
        try:
            return answer(command, await self._do(command), before), True
        except CommandFailed as failure:
            return refuse(command.id, failure), True

    async def _do(self, command: Command) -> Any:
        action = self._actions.get(command.method)
        if action is None:
            raise CommandFailed("unknown_command", f"Unknown command: {command.method[:100]}")
        try:
            return await action(command.params)
        except PortsideError as exc:
            raise failure_of(exc) from exc

    async def _start(self, params: dict[str, Any]) -> dict[str, Any]:
        if not params.get("assistant_id"):
            raise CommandFailed("invalid_argument", "run.start requires an assistant_id.")
        asked = read_params(params, RunStart)
        body = RunCreate(
            assistant_id=asked.assistant_id,
            input=asked.input,
            config=_speaking(asked.config),
            metadata=asked.metadata,
            langsmith_tracer=asked.langsmith_tracer,
            on_not_exist="create",
        )
        questions = await self._questions_for(asked)
        if not questions:
            return {"run_id": str((await self._run(body)).run_id)}
        body.input, body.command = None, Steering(resume=asked.input)
        return {"run_id": str((await self._resume(body, questions[0])).run_id)}

    async def _questions_for(self, asked: RunStart) -> list[str]:
        """Return what an input answers: all that the thread waits for, whatever the input looks like.

        That is how clients resume, for the command has no other place for an answer, and answers are objects as often
        as inputs are. Without an input, or from a checkpoint that is named, a run only goes on.
        """
        if asked.input is None or ((asked.config and asked.config.configurable) or {}).get("checkpoint_id"):
            return []
        await self._door.see_if_there()
        return await records.open_questions(self._db, self._thread_id)

    async def _respond(self, params: dict[str, Any]) -> dict[str, Any]:
        asked = read_params(params, InputRespond)
        answers = asked.answers()
        thread = await self._thread()
        waiting = {question["id"] for questions in _shown(thread.interrupts).values() for question in questions}
        for given in answers:
            if given.interrupt_id not in waiting:
                raise _consumed(given.interrupt_id)
        resume = {given.interrupt_id: given.response for given in answers}
        body = RunCreate(
            assistant_id=_assistant_of(thread),
            command=Steering(resume=resume, update=asked.update, goto=asked.goto),
            config=_speaking(asked.config),
            metadata=asked.metadata,
        )
        await self._resume(body, answers[0].interrupt_id)
        return {}

    async def _fork(self, params: dict[str, Any]) -> dict[str, Any]:
        asked = read_params(params, StateFork)
        thread = await self._thread()
        await self._state(Checkpoint(asked.checkpoint_id))
        run = await self._run(
            RunCreate(
                assistant_id=_assistant_of(thread),
                input=asked.input,
                config=_speaking(asked.config),
                checkpoint_id=asked.checkpoint_id,
            )
        )
        return {"run_id": str(run.run_id), "thread_id": str(run.thread_id)}

    async def _resume(self, body: RunCreate, interrupt_id: str) -> Run:
        body.multitask_strategy = "reject"
        try:
            return await self._run(body)
        except ThreadBusy as exc:
            # Somebody else's answer is being worked on.
            raise _consumed(interrupt_id) from exc

    async def _run(self, body: RunCreate) -> Run:
        body.stream_mode, body.stream_subgraphs = ["values"], True
        grant = await self._door.start_run(body)
        made = await self._runs.create(self._thread_id, body, self._request_id, grant=grant)
        await self._runs.hub.announce(made.feed, str(made.run.kwargs["config"]["configurable"]["graph_id"]))
        return made.run

    async def _subscribe(self, params: dict[str, Any]) -> dict[str, Any]:
        await self._door.see_if_there()
        try:
            return await self._subscriptions.begin(params)
        except BadRequest as exc:
            raise CommandFailed("invalid_argument", str(exc)) from exc

    async def _unsubscribe(self, params: dict[str, Any]) -> dict[str, Any]:
        subscription_id = read_params(params, Unsubscribe).subscription_id
        if not self._subscriptions.end(subscription_id):
            raise CommandFailed("no_such_subscription", f"Unknown subscription: {subscription_id[:100]}")
        return {}

    async def _show_tree(self, params: dict[str, Any]) -> dict[str, Any]:
        run_id = read_params(params, GetTree).run_id
        await self._door.see_if_there()
        tree = (await Session.join(self._runs.hub, self._thread_id)).session.tree
        if run_id is None and not tree.is_running:
            raise CommandFailed("no_such_run", "No run of this thread is under way.")
        if run_id is not None and run_id != tree.run_id:
            raise CommandFailed("no_such_run", f"Unknown run: {run_id[:100]}")
        return {"tree": tree.show()}

    async def _read_state(self, params: dict[str, Any]) -> dict[str, Any]:
        asked = read_params(params, StateGet)
        state = await self._state(Checkpoint(checkpoint_ns="|".join(asked.namespace or ())))
        if asked.namespace and state["created_at"] is None:
            raise CommandFailed("no_such_namespace", f"Unknown namespace: {'|'.join(asked.namespace)[:200]}")
        values = state["values"]
        if asked.keys is not None and isinstance(values, dict):
            values = {key: values[key] for key in asked.keys if key in values}
        named = state["checkpoint"]
        shown = {"checkpoint": {"id": named["checkpoint_id"], "ns": named.get("checkpoint_ns", "")}} if named else {}
        return {"values": values, **shown}

    async def _list_checkpoints(self, params: dict[str, Any]) -> dict[str, Any]:
        asked = read_params(params, ListCheckpoints)
        place = Checkpoint(checkpoint_ns="|".join(asked.namespace or ()))
        search = HistorySearch(limit=asked.limit or DEFAULT_CHECKPOINTS, before=asked.before, checkpoint=place)
        await self._door.see_if_there()
        try:
            history = await self._states.history(self._thread_id, search, self._door.caller)
        except ThreadNotFound:
            history = []
        return {"checkpoints": [_summary(state) for state in history]}

    async def _state(self, at: Checkpoint) -> dict[str, Any]:
        try:
            await self._door.see()
            return await self._states.read(self._thread_id, StateAtCheckpoint(at), self._door.caller)
        except CheckpointNotFound as exc:
            raise CommandFailed("no_such_checkpoint", str(exc)) from exc

    async def _thread(self) -> Thread:
        try:
            await self._door.see()
            return await records.get_thread(self._db, self._thread_id)
        except ThreadNotFound as exc:
            raise CommandFailed("no_such_run", str(exc)) from exc


def _consumed(interrupt_id: str) -> CommandFailed:
    return CommandFailed("no_such_interrupt", f"Unknown or already-consumed interrupt: {interrupt_id[:100]}")


def _speaking(config: RunConfig | None) -> RunConfig:
    """Mark a run as one whose events the protocol's readers want."""
    config = config or RunConfig()
    return msgspec.structs.replace(config, configurable={**(config.configurable or {}), **SPEAKS_PROTOCOL})


def _assistant_of(thread: Thread) -> str:
    metadata = _shown(thread.metadata)
    assistant = metadata.get("assistant_id") or metadata.get("graph_id")
    if not isinstance(assistant, str):
        raise CommandFailed("no_such_run", "The thread has had no run that could go on.")
    return assistant


def _shown(part: Any) -> dict[str, Any]:
    """Return a part of a thread as it was stored."""
    return load(part) or {} if isinstance(part, msgspec.Raw) else part or {}


def _summary(state: dict[str, Any]) -> dict[str, Any]:
    metadata = state["metadata"] or {}
    return {
        "id": state["checkpoint_id"],
        "timestamp": state["created_at"],
        "step": metadata.get("step"),
        "metadata": metadata,
    }
