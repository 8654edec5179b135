"""Acts on the commands of the event streaming protocol, for one client of one thread.

A client sends commands over plain HTTP, one in each request, or over a connection of its own (`connection.py`), which
also carries the events that it subscribed to.

`input.inject` and `subscription.reconnect` are in the specification, but a thread's queue of runs gives them no
meaning. They are answered like any unknown command.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from portside.agent.access.service import Access, DeferredThreadCheck
from portside.agent.protocol.channel_filters import read_filter
from portside.agent.protocol.sequence import EventSequence
from portside.agent.protocol.subscriptions import Subscriptions
from portside.agent.protocol.wire import (
    CommandError,
    GetTree,
    InputRespond,
    InvalidCommand,
    ListCheckpoints,
    ProtocolCommand,
    RunStart,
    StateFork,
    StateGet,
    Unsubscribe,
    encode_error,
    encode_success,
    read_command,
    read_params,
)
from portside.agent.runs.errors import ThreadBusy
from portside.agent.runs.service import Runs
from portside.agent.threads import records
from portside.agent.threads.reading import CheckpointNotFound
from portside.agent.threads.records import ThreadNotFound
from portside.agent.threads.states import States
from portside.agent.types.access import Caller, Grant
from portside.agent.types.runs import Command as RunCommand
from portside.agent.types.runs import Run, RunConfig, RunCreate
from portside.agent.types.states import Checkpoint, HistorySearch, StateAtCheckpoint
from portside.agent.types.threads import Thread
from portside.executor.requests import STREAM_PROTOCOL
from portside.kernel.codec import load
from portside.kernel.db import Database
from portside.kernel.errors import BadRequest, PortsideError
from portside.kernel.ids import uuid7

PROTOCOL_FLAG = {STREAM_PROTOCOL: "v2"}
DEFAULT_CHECKPOINTS = 10


class ThreadAccess(NamedTuple):
    """The access of one client to one thread. Each method raises the errors of the project's handlers."""

    access: Access
    caller: Caller
    thread_id: UUID

    async def authorize_read(self) -> None:
        """Check that the client may read the thread. Raises ThreadNotFound if it may not."""
        await self.access.authorize_thread(self.caller, "read", self.thread_id)

    async def authorize_follow(self) -> DeferredThreadCheck:
        """Check the same for a thread that need not exist yet; return the check for when it is created."""
        return await self.access.authorize_thread_follow(self.caller, self.thread_id)

    async def authorize_run(self, body: RunCreate) -> Grant:
        """Check that the client may start a run on the thread."""
        return await self.access.authorize_run(self.caller, self.thread_id, body)


class Commands:
    """The commands of one thread, by one client."""

    def __init__(
        self,
        services: tuple[Database, Runs, States],
        access: ThreadAccess,
        request_id: str,
        subscriptions: Subscriptions | None,
    ) -> None:
        self._db, self._runs, self._states = services
        self._access = access
        self._thread_id = access.thread_id
        self._request_id = request_id
        self._subscriptions = subscriptions

        self._actions: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "run.start": self._start,
            "input.respond": self._respond,
            "subscription.subscribe": self._subscribe,
            "subscription.unsubscribe": self._unsubscribe,
            "agent.getTree": self._get_tree,
            "state.get": self._get_state,
            "state.listCheckpoints": self._list_checkpoints,
            "state.fork": self._fork,
        }

    async def act(self, raw: bytes | str) -> tuple[bytes, bool]:
        """Act on a command; return the response, and whether it was a valid command at all.

        Raises BadRequest if it is not JSON, and what the database raises.
        """
        try:
            command = read_command(raw)
        except InvalidCommand as failure:
            return encode_error(failure.id, failure), False

        # Read before the command is carried out: it may cause events after this number.
        last_seq = (await EventSequence.join(self._runs.hub, self._thread_id)).sequence.last_seq
        try:
            result = await self._do(command)
            return encode_success(command, result, applied_through_seq=last_seq), True
        except CommandError as failure:
            return encode_error(command.id, failure), True

    async def _do(self, command: ProtocolCommand) -> Any:
        action = self._actions.get(command.method)
        if action is None:
            raise CommandError("unknown_command", f"Unknown command: {command.method[:100]}")

        try:
            return await action(command.params)
        except PortsideError as exc:
            # Clients read the HTTP status in front of the message.
            raise CommandError("unknown_error", f"{exc.status}: {exc}") from exc

    async def _start(self, params: dict[str, Any]) -> dict[str, Any]:
        if not params.get("assistant_id"):
            raise CommandError("invalid_argument", "run.start requires an assistant_id.")

        start = read_params(params, RunStart)
        body = RunCreate(
            assistant_id=start.assistant_id,
            input=start.input,
            config=_with_protocol_flag(start.config),
            metadata=start.metadata,
            langsmith_tracer=start.langsmith_tracer,
            on_not_exist="create",
        )

        interrupt_ids = await self._list_answered_interrupts(start)
        if interrupt_ids:
            body.input = None
            body.command = RunCommand(resume=start.input)
            run = await self._resume(body, interrupt_ids[0])
        else:
            run = await self._run(body)

        return {"run_id": str(run.run_id)}

    async def _list_answered_interrupts(self, start: RunStart) -> list[str]:
        """Return the interrupts that an input answers: all open ones of the thread, whatever the input looks like.

        Clients resume that way: the command has no other field for an answer, and answers are objects as often as
        inputs are. Without an input, or from a named checkpoint, a run only continues.
        """
        configurable = (start.config and start.config.configurable) or {}
        if start.input is None or configurable.get("checkpoint_id"):
            return []

        await self._access.authorize_follow()
        return await records.list_pending_interrupts(self._db, self._thread_id) or []

    async def _respond(self, params: dict[str, Any]) -> dict[str, Any]:
        response = read_params(params, InputRespond)
        answers = response.list_answers()
        thread = await self._get_thread()

        interrupts_by_task = _decode_field(thread.interrupts)
        open_ids = {interrupt["id"] for interrupts in interrupts_by_task.values() for interrupt in interrupts}
        for answer in answers:
            if answer.interrupt_id not in open_ids:
                raise _no_such_interrupt(answer.interrupt_id)

        resume = {answer.interrupt_id: answer.response for answer in answers}
        body = RunCreate(
            assistant_id=_get_assistant_id(thread),
            command=RunCommand(resume=resume, update=response.update, goto=response.goto),
            config=_with_protocol_flag(response.config),
            metadata=response.metadata,
        )

        await self._resume(body, answers[0].interrupt_id)
        return {}

    async def _fork(self, params: dict[str, Any]) -> dict[str, Any]:
        fork = read_params(params, StateFork)
        thread = await self._get_thread()
        await self._read_state(Checkpoint(fork.checkpoint_id))

        run = await self._run(
            RunCreate(
                assistant_id=_get_assistant_id(thread),
                input=fork.input,
                config=_with_protocol_flag(fork.config),
                checkpoint_id=fork.checkpoint_id,
            )
        )

        return {"run_id": str(run.run_id), "thread_id": str(run.thread_id)}

    async def _resume(self, body: RunCreate, interrupt_id: str) -> Run:
        body.multitask_strategy = "reject"
        try:
            return await self._run(body)
        except ThreadBusy as exc:
            # A run has already begun with another client's answer.
            raise _no_such_interrupt(interrupt_id) from exc

    async def _run(self, body: RunCreate) -> Run:
        body.stream_mode = ["values"]
        body.stream_subgraphs = True
        grant = await self._access.authorize_run(body)
        run, stream, _ = await self._runs.create(self._thread_id, body, self._request_id, grant=grant)

        graph_id = run.kwargs["config"]["configurable"]["graph_id"]
        await self._runs.hub.announce(stream, str(graph_id))
        return run

    async def _subscribe(self, params: dict[str, Any]) -> dict[str, Any]:
        await self._access.authorize_follow()
        try:
            if self._subscriptions is not None:
                return await self._subscriptions.subscribe(params)

            # Over plain HTTP nobody could read the events.
            read_filter(params)
        except BadRequest as exc:
            raise CommandError("invalid_argument", str(exc)) from exc

        return {"subscription_id": str(uuid7()), "replayed_events": 0}

    async def _unsubscribe(self, params: dict[str, Any]) -> dict[str, Any]:
        subscription_id = read_params(params, Unsubscribe).subscription_id
        if self._subscriptions is None or not self._subscriptions.unsubscribe(subscription_id):
            raise CommandError("no_such_subscription", f"Unknown subscription: {subscription_id[:100]}")

        return {}

    async def _get_tree(self, params: dict[str, Any]) -> dict[str, Any]:
        run_id = read_params(params, GetTree).run_id
        await self._access.authorize_follow()

        tree = (await EventSequence.join(self._runs.hub, self._thread_id)).sequence.tree
        if run_id is None and not tree.is_running:
            raise CommandError("no_such_run", "No run of this thread is in progress.")
        if run_id is not None and run_id != tree.run_id:
            raise CommandError("no_such_run", f"Unknown run: {run_id[:100]}")

        return {"tree": tree.as_json()}

    async def _get_state(self, params: dict[str, Any]) -> dict[str, Any]:
        request = read_params(params, StateGet)
        namespace = "|".join(request.namespace or ())
        unknown = CommandError("no_such_namespace", f"Unknown namespace: {namespace[:200]}")
        try:
            state = await self._read_state(Checkpoint(checkpoint_ns=namespace))
        except BadRequest as exc:
            # Older versions of langgraph refuse to read a namespace that no subgraph has.
            if not namespace:
                raise

            raise unknown from exc

        if namespace and state["created_at"] is None:
            raise unknown

        values = state["values"]
        if request.keys is not None and isinstance(values, dict):
            values = {key: values[key] for key in request.keys if key in values}

        result = {"values": values}
        checkpoint = state["checkpoint"]
        if checkpoint:
            result["checkpoint"] = {"id": checkpoint["checkpoint_id"], "ns": checkpoint.get("checkpoint_ns", "")}

        return result

    async def _list_checkpoints(self, params: dict[str, Any]) -> dict[str, Any]:
        request = read_params(params, ListCheckpoints)
        search = HistorySearch(
            limit=request.limit or DEFAULT_CHECKPOINTS,
            before=request.before,
            checkpoint=Checkpoint(checkpoint_ns="|".join(request.namespace or ())),
        )
        await self._access.authorize_follow()

        try:
            history = load(await self._states.history(self._thread_id, search, self._access.caller))
        except ThreadNotFound:
            history = []

        return {"checkpoints": [_summarize(state) for state in history]}

    async def _read_state(self, at: Checkpoint) -> dict[str, Any]:
        try:
            await self._access.authorize_read()
            return await self._states.read(self._thread_id, StateAtCheckpoint(at), self._access.caller)
        except CheckpointNotFound as exc:
            raise CommandError("no_such_checkpoint", str(exc)) from exc

    async def _get_thread(self) -> Thread:
        try:
            await self._access.authorize_read()
            return await records.get_thread(self._db, self._thread_id)
        except ThreadNotFound as exc:
            raise CommandError("no_such_run", str(exc)) from exc


def _no_such_interrupt(interrupt_id: str) -> CommandError:
    return CommandError("no_such_interrupt", f"Unknown or already-consumed interrupt: {interrupt_id[:100]}")


def _with_protocol_flag(config: RunConfig | None) -> RunConfig:
    """Mark a run, so that it emits the channel events of the protocol."""
    config = config or RunConfig()
    return msgspec.structs.replace(config, configurable={**(config.configurable or {}), **PROTOCOL_FLAG})


def _get_assistant_id(thread: Thread) -> str:
    metadata = _decode_field(thread.metadata)
    assistant = metadata.get("assistant_id") or metadata.get("graph_id")
    if not isinstance(assistant, str):
        raise CommandError("no_such_run", "The thread has no earlier run to continue from.")

    return assistant


def _decode_field(part: Any) -> dict[str, Any]:
    """Return a field of a thread as it was stored."""
    value = load(part) if isinstance(part, msgspec.Raw) else part
    return value or {}


def _summarize(state: dict[str, Any]) -> dict[str, Any]:
    metadata = state["metadata"] or {}
    return {
        "id": state["checkpoint_id"],
        "timestamp": state["created_at"],
        "step": metadata.get("step"),
        "metadata": metadata,
    }
