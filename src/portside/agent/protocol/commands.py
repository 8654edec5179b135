"""Acts on the commands of the event streaming protocol, for one client of one thread.

A client sends commands over plain HTTP, one in each request, or over a connection of its own (`ClientConnection`),
which also carries the events that it subscribed to.

`input.inject` and `subscription.reconnect` are in the specification, but a thread's queue of runs gives them no
meaning. They are answered like any unknown command.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from portside.agent.access.service import NO_CHECK, Access, DeferredThreadCheck
from portside.agent.protocol.sequence import EventSequence, JoinedSequence, SequenceReader, read_seq
from portside.agent.protocol.wire import (
    ChannelFilter,
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
    error_response,
    read_command,
    read_filter,
    read_params,
    success_response,
)
from portside.agent.runs.errors import ThreadBusy
from portside.agent.runs.service import Runs
from portside.agent.streams.hub import Hub
from portside.agent.threads import records
from portside.agent.threads.reading import CheckpointNotFound
from portside.agent.threads.records import ThreadNotFound
from portside.agent.threads.states import States
from portside.agent.types.access import Caller, Grant
from portside.agent.types.runs import Command as RunCommand
from portside.agent.types.runs import Run, RunConfig, RunCreate
from portside.agent.types.threads import Checkpoint, HistorySearch, StateAtCheckpoint, Thread
from portside.executor.requests import STREAM_PROTOCOL
from portside.kernel.codec import load
from portside.kernel.db import Database
from portside.kernel.errors import BadRequest, PortsideError
from portside.kernel.ids import uuid7

SUBSCRIPTIONS_LIMIT = 100
PROTOCOL_FLAG = {STREAM_PROTOCOL: "v2"}
DEFAULT_CHECKPOINTS = 10
FRAMES_BETWEEN_YIELDS = 16
# Frames that arrive within this time were sent at once.
TOGETHER_WITHIN_S = 0.01
Send = Callable[[bytes], Awaitable[None]]


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


class Subscriptions:
    """The subscriptions of one client to one thread, over a connection of its own.

    One reader serves them all. It gives each event once and in order, whichever of them want it: clients find an
    event's subscriptions by their filters. If each had a reader of its own, the end of a run could overtake an earlier
    event for another subscription, and clients take no event of a run after its end.
    """

    def __init__(self, hub: Hub, thread_id: UUID) -> None:
        self._hub = hub
        self._thread_id = thread_id
        self._joined: JoinedSequence | None = None

        # Those that the reader serves, and those that wait for the next `begin`.
        self._begun: dict[str, ChannelFilter] = {}
        self._new: dict[str, ChannelFilter] = {}
        self._last_frame = b""
        self.is_changed = False

        """Whether there are other subscriptions than those that the reader serves."""
        self.reader: SequenceReader | None = None
        """The reader of all subscriptions that have begun; None if there are none."""
        self.has_begun = asyncio.Event()

        """Set by `begin`."""

    async def subscribe(self, params: dict[str, Any]) -> dict[str, Any]:
        """Add a subscription, whose events come after the next `begin`.

        Raises BadRequest for invalid parameters, and CommandError for too many subscriptions.
        """
        channel_filter = read_filter(params)
        if len(self._begun) + len(self._new) >= SUBSCRIPTIONS_LIMIT:
            raise CommandError("not_supported", f"A connection may have {SUBSCRIPTIONS_LIMIT} subscriptions.")

        self._joined = await EventSequence.join(self._hub, self._thread_id)
        positioned_filter, replayed = self._joined.sequence.place(channel_filter)

        subscription_id = str(uuid7())
        self._new[subscription_id] = positioned_filter
        self.is_changed = True

        return {"subscription_id": subscription_id, "replayed_events": replayed}

    def unsubscribe(self, subscription_id: str) -> bool:
        """End a subscription; False if there is none with this id."""
        subscription = self._new.pop(subscription_id, None) or self._begun.pop(subscription_id, None)
        self.is_changed = self.is_changed or subscription is not None
        return subscription is not None

    def begin(self) -> None:
        """Have one reader serve all subscriptions from now on; those that were served continue where they are."""
        last_seq = read_seq(self._last_frame)
        self._begun = {name: channel_filter.after(last_seq) for name, channel_filter in self._begun.items()} | self._new
        self._new = {}
        self._last_frame = b""
        self.is_changed = False

        if self.reader is not None:
            self.reader.replace()

        assert self._joined is not None  # noqa: S101 - nothing changes before the first subscription
        self.reader = self._joined.read_frames([*self._begun.values()]) if self._begun else None
        self.has_begun.set()

    def note_sent(self, frame: bytes) -> None:
        """Note the last frame of the reader that was sent."""
        self._last_frame = frame


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
            return error_response(failure.id, failure), False

        # Read before the command is carried out: it may cause events after this number.
        before = (await EventSequence.join(self._runs.hub, self._thread_id)).sequence.last_seq
        try:
            return success_response(command, await self._do(command), before), True
        except CommandError as failure:
            return error_response(command.id, failure), True

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

        interrupts = await self._interrupts_for(start)
        if not interrupts:
            return {"run_id": str((await self._run(body)).run_id)}

        body.input = None
        body.command = RunCommand(resume=start.input)
        return {"run_id": str((await self._resume(body, interrupts[0])).run_id)}

    async def _interrupts_for(self, start: RunStart) -> list[str]:
        """Return the interrupts that an input answers: all open ones of the thread, whatever the input looks like.

        Clients resume that way: the command has no other field for an answer, and answers are objects as often as
        inputs are. Without an input, or from a named checkpoint, a run only continues.
        """
        if start.input is None or ((start.config and start.config.configurable) or {}).get("checkpoint_id"):
            return []

        await self._access.authorize_follow()
        return await records.pending_interrupts(self._db, self._thread_id) or []

    async def _respond(self, params: dict[str, Any]) -> dict[str, Any]:
        response = read_params(params, InputRespond)
        answers = response.answers()
        thread = await self._thread()

        open_ids = {each["id"] for waiting in _decoded(thread.interrupts).values() for each in waiting}
        for each in answers:
            if each.interrupt_id not in open_ids:
                raise _consumed(each.interrupt_id)

        resume = {each.interrupt_id: each.response for each in answers}
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
        thread = await self._thread()
        await self._state(Checkpoint(fork.checkpoint_id))

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
            raise _consumed(interrupt_id) from exc

    async def _run(self, body: RunCreate) -> Run:
        body.stream_mode = ["values"]
        body.stream_subgraphs = True
        grant = await self._access.authorize_run(body)
        created = await self._runs.create(self._thread_id, body, self._request_id, grant=grant)

        await self._runs.hub.announce(created.stream, str(created.run.kwargs["config"]["configurable"]["graph_id"]))
        return created.run

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
            state = await self._state(Checkpoint(checkpoint_ns=namespace))
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

        named = state["checkpoint"]
        shown = {"checkpoint": {"id": named["checkpoint_id"], "ns": named.get("checkpoint_ns", "")}} if named else {}
        return {"values": values, **shown}

    async def _list_checkpoints(self, params: dict[str, Any]) -> dict[str, Any]:
        request = read_params(params, ListCheckpoints)
        place = Checkpoint(checkpoint_ns="|".join(request.namespace or ()))
        search = HistorySearch(limit=request.limit or DEFAULT_CHECKPOINTS, before=request.before, checkpoint=place)
        await self._access.authorize_follow()

        try:
            history = load(await self._states.history(self._thread_id, search, self._access.caller))
        except ThreadNotFound:
            history = []

        return {"checkpoints": [_summary(state) for state in history]}

    async def _state(self, at: Checkpoint) -> dict[str, Any]:
        try:
            await self._access.authorize_read()
            return await self._states.read(self._thread_id, StateAtCheckpoint(at), self._access.caller)
        except CheckpointNotFound as exc:
            raise CommandError("no_such_checkpoint", str(exc)) from exc

    async def _thread(self) -> Thread:
        try:
            await self._access.authorize_read()
            return await records.get_thread(self._db, self._thread_id)
        except ThreadNotFound as exc:
            raise CommandError("no_such_run", str(exc)) from exc


def _consumed(interrupt_id: str) -> CommandError:
    return CommandError("no_such_interrupt", f"Unknown or already-consumed interrupt: {interrupt_id[:100]}")


def _with_protocol_flag(config: RunConfig | None) -> RunConfig:
    """Mark a run, so that it emits the channel events of the protocol."""
    config = config or RunConfig()
    return msgspec.structs.replace(config, configurable={**(config.configurable or {}), **PROTOCOL_FLAG})


def _get_assistant_id(thread: Thread) -> str:
    metadata = _decoded(thread.metadata)
    assistant = metadata.get("assistant_id") or metadata.get("graph_id")
    if not isinstance(assistant, str):
        raise CommandError("no_such_run", "The thread has no earlier run to continue from.")

    return assistant


def _decoded(part: Any) -> dict[str, Any]:
    """Return a field of a thread as it was stored."""
    return load(part) or {} if isinstance(part, msgspec.Raw) else part or {}


def _summary(state: dict[str, Any]) -> dict[str, Any]:
    metadata = state["metadata"] or {}
    return {
        "id": state["checkpoint_id"],
        "timestamp": state["created_at"],
        "step": metadata.get("step"),
        "metadata": metadata,
    }


class ClientConnection:
    """One client's connection: its commands one after the other, and its events between the responses.

    It ends when the client leaves, or when the events end although the client wants more.
    """

    def __init__(
        self,
        frames: AsyncIterator[str],
        send: Send,
        subscriptions: Subscriptions,
        check: DeferredThreadCheck = NO_CHECK,
    ) -> None:
        self._frames = frames
        self._send = send
        self._subscriptions = subscriptions
        self._check = check
        self._incoming: asyncio.Future[str | None] | None = None

    async def serve(self, commands: Commands) -> None:
        """Serve the client until it leaves. Raises what acting on a command and sending raise."""
        tasks = [asyncio.create_task(self._serve_commands(commands)), asyncio.create_task(self._send_events())]
        try:
            ended_tasks, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended_tasks:
                task.result()
        finally:
            running: list[asyncio.Future[Any]] = [*tasks]
            if self._incoming is not None:
                running.append(self._incoming)

            for future in running:
                future.cancel()

            await asyncio.gather(*running, return_exceptions=True)

    async def _serve_commands(self, commands: Commands) -> None:
        incoming = self._receive()
        while (frame := await incoming) is not None:
            incoming = self._receive()
            try:
                response, _ = await commands.act(frame)
            except BadRequest as exc:
                response = error_response(None, CommandError("invalid_argument", str(exc)))

            await self._send(response)

            if self._subscriptions.is_changed and not await _comes_soon(incoming):
                self._subscriptions.begin()

    def _receive(self) -> "asyncio.Future[str | None]":
        self._incoming = asyncio.ensure_future(anext(self._frames, None))
        return self._incoming

    async def _send_events(self) -> None:
        is_allowed = False
        while True:
            reader = self._subscriptions.reader
            if reader is None:
                self._subscriptions.has_begun.clear()
                await self._subscriptions.has_begun.wait()
                continue

            frames = await reader.take()
            if not frames and not reader.is_replaced:
                return

            # Repeated until it passes: the thread may be created after the client began to follow it.
            is_allowed = is_allowed or not frames or await self._check.passes()
            if not is_allowed:
                return

            await self._send_frames(reader, frames)

    async def _send_frames(self, reader: SequenceReader, frames: list[bytes]) -> None:
        for number, frame in enumerate(frames, 1):
            if reader.is_replaced:
                # The next reader begins with the first frame that was not sent.
                return

            self._subscriptions.note_sent(frame)
            await self._send(frame)

            if number % FRAMES_BETWEEN_YIELDS == 0:
                # Sending to a fast reader never waits: let other work run.
                await asyncio.sleep(0)


async def _comes_soon(incoming: "asyncio.Future[str | None]") -> bool:
    """Wait a moment for the client's next frame.

    Clients send several subscriptions at once. All of them are in place before the first one's events are sent, or the
    end of a run that is over could be sent before an earlier event that only another one wants.
    """
    # In two parts: the loop may have been busy during the first one, and not have read what had arrived.
    for _ in range(2):
        await asyncio.wait([incoming], timeout=TOGETHER_WITHIN_S / 2)
    return incoming.done()
