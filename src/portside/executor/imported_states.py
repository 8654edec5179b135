"""The states of a thread of another server, made again by the graph of this one.

A server shows the states of a thread as JSON: values, the next nodes, what the nodes returned, open interrupts.
langgraph makes checkpoints of it again by applying the same updates as the same nodes, so that messages become messages
again and the next nodes follow. Each checkpoint keeps its id and its time; ids of tasks and of interrupts follow from
the ids of checkpoints.

Everything happens in memory, where an update that did not lead to the expected state is tried in another way. Only the
checkpoints that were accepted are stored. Conditional edges of the graph are called, its nodes are not.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import langgraph.types
from langchain_core.messages import messages_from_dict
from langchain_core.runnables import RunnableConfig
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Interrupt, StateSnapshot, StateUpdate

from portside.executor.load import Graph
from portside.executor.requests import INTERRUPT
from portside.kernel.errors import Invalid
from portside.kernel.user_json import dump_user

_START = "__start__"
_END = "__end__"
_INPUT = "__input__"
_COPY = "__copy__"
_ERROR = "__error__"
_OVERWRITE = "__overwrite__"
# Before, a reducer gets the whole value: messages are the same then, and other values are named as different.
_CAN_OVERWRITE = hasattr(langgraph.types, "Overwrite")
# An update whose node is unknown is tried as each node of a graph of at most so many.
_MAX_NODES_TRIED = 20
_ABSENT = object()
# What every message has in JSON.
_FIELDS_OF_MESSAGES = frozenset({"type", "content", "additional_kwargs", "response_metadata", "id"})


class StagedCheckpoints(InMemorySaver):
    """Checkpoints in memory. A config without a checkpoint's id names none of them, and not the latest."""

    def __init__(self, stored: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=stored.serde)
        self._stored = stored
        self.state: Mapping[str, Any] | None = None
        """The state whose id, time and metadata the next checkpoint gets; None for one that is not stored at last."""

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version of a channel, as the checkpointer makes it that stores the checkpoints at last."""
        version: str = self._stored.get_next_version(current, channel)
        return version

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint in memory."""
        if self.state is not None:
            checkpoint = {**checkpoint, "id": self.state["checkpoint_id"], "ts": self.state["created_at"]}
            metadata = {**metadata, **self.state["metadata"]}

        return await super().aput(config, checkpoint, metadata, new_versions)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names."""
        if not config["configurable"].get("checkpoint_id"):
            return None

        return await super().aget_tuple(config)

    def copy_writes(self) -> dict[Any, dict[Any, Any]]:
        """Return the writes of all tasks, for `restore_writes`."""
        return {key: dict(writes) for key, writes in self.writes.items()}

    def restore_writes(self, writes: dict[Any, dict[Any, Any]]) -> None:
        """Forget the writes since the copy was made."""
        self.writes.clear()
        self.writes.update(writes)


async def import_states(graph: Graph, config: RunnableConfig, states: Sequence[Mapping[str, Any]]) -> None:
    """Store the states of a thread, oldest first, with the graph's checkpointer. Raises Invalid that names a state."""
    stored: Any = graph.checkpointer
    staged = StagedCheckpoints(stored)
    importer = _Importer(graph.copy({"checkpointer": staged}), staged, config)

    for position, state in enumerate(states):
        try:
            await importer.add(state)
        except Exception as exc:
            reason = f"the graph refuses this state: {type(exc).__name__}: {exc}"
            raise Invalid.field(["body", "history", position], reason[:1000]) from exc

        # The loop also executes runs.
        await asyncio.sleep(0)

    await importer.store(stored)


class _Importer:
    """Makes the states of one thread, one after the other."""

    def __init__(self, graph: Graph, staged: StagedCheckpoints, config: RunnableConfig) -> None:
        self._graph = graph
        self._staged = staged
        self._config = config
        self._values: dict[str, dict[str, Any]] = {}
        """The values of each state as JSON has them, by the checkpoint's id."""
        self._states: dict[str, Mapping[str, Any]] = {}

    async def add(self, state: Mapping[str, Any]) -> None:
        """Make a state after those before it."""
        parent_id = state.get("parent_checkpoint_id")
        parent = self._states.get(parent_id or "")
        values = _expand(state, self._values.get(parent_id or "", {}))

        base = self._name(parent_id) if parent is not None else self._name(None)
        if parent is None:
            base = await self._seed(base, values if state["metadata"].get("source") == "input" else {})

        await self._make(state, parent, values, base)
        self._values[state["checkpoint_id"]] = values
        self._states[state["checkpoint_id"]] = state
        await self._add_task_writes(state)

    def _name(self, checkpoint_id: str | None) -> RunnableConfig:
        """Return the config that names a checkpoint; None names a place without one."""
        configurable = {**self._config["configurable"], "checkpoint_ns": "", "checkpoint_id": checkpoint_id}
        return {**self._config, "configurable": configurable}

    async def _seed(self, base: RunnableConfig, values: dict[str, Any]) -> RunnableConfig:
        """Return a place with these values and no next nodes, for a state whose predecessors are not imported."""
        if not values:
            return base

        return await self._settle(base, values)

    async def _settle(self, base: RunnableConfig, values: dict[str, Any]) -> RunnableConfig:
        """Write values as some node, and clear the next nodes."""
        update = await self._build_overwrites(base, values)
        for name in self._list_nodes():
            try:
                at = await self._apply(base, [StateUpdate(update, name)])
                return await self._apply(at, [StateUpdate(None, _END)])
            except Exception as exc:  # noqa: BLE001 - conditions of the graph may refuse any state
                failure = exc

        raise failure

    async def _make(
        self, state: Mapping[str, Any], parent: Mapping[str, Any] | None, values: dict[str, Any], base: RunnableConfig
    ) -> None:
        """Try each way to make a state until one leads to its values and its next nodes.

        If none does, the one is taken that leads to the values, or else the first that the graph accepts.
        """
        expected = sorted(state["next"])
        with_values: tuple[RunnableConfig, list[StateUpdate]] | None = None
        accepted: tuple[RunnableConfig, list[StateUpdate]] | None = None
        failure: Exception | None = None
        writes = self._staged.copy_writes()

        async for at, updates in self._plan(state, parent, values, base):
            try:
                snapshot = await self._try(state, at, updates)
            except Exception as exc:  # noqa: BLE001 - conditions of the graph may refuse any state
                failure = exc
                continue
            finally:
                attempted_writes = self._staged.copy_writes()
                self._staged.restore_writes(writes)

            has_values = self._has_values(snapshot, values)
            if has_values and sorted(snapshot.next) == expected:
                self._staged.restore_writes(attempted_writes)
                return

            accepted = accepted or (at, updates)
            if has_values:
                with_values = with_values or (at, updates)

        best = with_values or accepted
        if best is None:
            raise failure or ValueError("no update of a node leads to this state")

        await self._try(state, *best)

    async def _try(self, state: Mapping[str, Any], at: RunnableConfig, updates: list[StateUpdate]) -> StateSnapshot:
        """Apply updates under the checkpoint id of a state, instead of what was tried before."""
        config = await self._apply(at, updates, state=state)
        return await self._graph.aget_state(config)

    async def _apply(
        self, at: RunnableConfig, updates: list[StateUpdate], *, state: Mapping[str, Any] | None = None
    ) -> RunnableConfig:
        self._staged.state = state
        try:
            return await self._graph.abulk_update_state(at, [updates])
        finally:
            self._staged.state = None

    async def _plan(
        self, state: Mapping[str, Any], parent: Mapping[str, Any] | None, values: dict[str, Any], base: RunnableConfig
    ) -> AsyncIterator[tuple[RunnableConfig, list[StateUpdate]]]:
        """Yield the ways to make a state, the most natural first: where to begin, and the updates."""
        source = state["metadata"].get("source")
        if source == "input":
            raw_input = next((task.get("result") for task in state["tasks"] if task["name"] == _START), None)
            cleared = base if parent is None else await self._apply(base, [StateUpdate(None, _END)])
            yield cleared, [StateUpdate(restore_messages(raw_input) or {}, _INPUT)]
            return

        if source == "fork":
            for sibling in self._find_equals(state, values):
                yield self._name(sibling), [StateUpdate(None, _COPY)]

        finished_tasks = [task for task in (parent or {}).get("tasks", ()) if task.get("result") is not None]
        for updates in self._plan_results(state, finished_tasks):
            yield base, updates

        update = await self._build_overwrites(base, values)
        names = [task["name"] for task in finished_tasks] or list((parent or {}).get("next", ()))
        if names:
            yield base, [StateUpdate(update, names[0]), *(StateUpdate(None, name) for name in names[1:])]

        if source == "update":
            yield base, [StateUpdate(update, None)]

        settled = await self._settle(base, values)
        if not state["next"]:
            yield settled, [StateUpdate(None, _END)]

        for at, updates in self._plan_any_node(state, names, (base, update), settled):
            yield at, updates

    def _plan_results(
        self, state: Mapping[str, Any], finished_tasks: Sequence[Mapping[str, Any]]
    ) -> Iterator[list[StateUpdate]]:
        """Yield the updates that the tasks of the state before returned."""
        if finished_tasks:
            yield [StateUpdate(restore_messages(task["result"]), task["name"]) for task in finished_tasks]

        # A message that a node returned without an id has one in the state.
        if len(finished_tasks) == 1:
            changes = {**(state.get("values") or {}), **(state.get("appended") or {})}
            update = {key: value for key, value in changes.items() if key in self._graph.channels}
            yield [StateUpdate(restore_messages(update), finished_tasks[0]["name"])]

    def _plan_any_node(
        self,
        state: Mapping[str, Any],
        names: Sequence[str],
        overwriting: tuple[RunnableConfig, dict[str, Any]],
        settled: RunnableConfig,
    ) -> Iterator[tuple[RunnableConfig, list[StateUpdate]]]:
        """Yield ways that do not follow from the state before.

        A node may have chosen the next ones itself, and an edge from several nodes stays open after their updates.
        """
        goto: Any = Command(goto=list(state["next"]))
        for name in names if state["next"] else ():
            yield settled, [StateUpdate(goto, name)]

        base, update = overwriting
        for name in self._list_nodes():
            yield base, [StateUpdate(update, name)]
            if state["next"]:
                yield settled, [StateUpdate(goto, name)]

    def _find_equals(self, state: Mapping[str, Any], values: dict[str, Any]) -> list[str]:
        """Return the checkpoints of which a state may be a copy, the latest first."""
        return [
            checkpoint_id
            for checkpoint_id, other in reversed(self._states.items())
            if other.get("parent_checkpoint_id") == state.get("parent_checkpoint_id")
            and sorted(other["next"]) == sorted(state["next"])
            and self._values[checkpoint_id] == values
        ]

    def _list_nodes(self) -> list[str]:
        names = [name for name in self._graph.nodes if name != _START]
        return names[:_MAX_NODES_TRIED]

    async def _build_overwrites(self, base: RunnableConfig, values: dict[str, Any]) -> dict[str, Any]:
        """Return the update that leads from the values of a place to these, whatever the reducers of the graph do."""
        current = (await self._graph.aget_state(base)).values
        present = _to_json(current) if isinstance(current, Mapping) else {}
        return {
            key: self._overwrite(key, value)
            for key, value in values.items()
            if present.get(key, _ABSENT) != value and key in self._graph.channels
        }

    def _overwrite(self, key: str, value: Any) -> Any:
        coerced = self._coerce(key, value)
        is_reduced = isinstance(self._graph.channels[key], BinaryOperatorAggregate)
        return {_OVERWRITE: coerced} if is_reduced and _CAN_OVERWRITE else coerced

    def _coerce(self, key: str, value: Any) -> Any:
        """Return a value with messages instead of the dicts that JSON has, and as the reducer of a channel makes it."""
        value = restore_messages(value)
        channel = self._graph.channels.get(key)
        if not isinstance(channel, BinaryOperatorAggregate):
            return value

        try:
            empty = channel.__class__(channel.typ, channel.operator)
            empty.key = key
            empty.update([value])
            return empty.get()
        except Exception:  # noqa: BLE001 - reducers are the user's code
            return value

    def _has_values(self, snapshot: StateSnapshot, values: dict[str, Any]) -> bool:
        """Whether a state has these values, as this version of the libraries writes them."""
        actual = _to_json(snapshot.values) if isinstance(snapshot.values, Mapping) else {}
        expected = _to_json({key: self._coerce(key, value) for key, value in values.items()})
        channels = self._graph.channels
        empties: tuple[Any, ...] = (None, [], {})
        return {key: value for key, value in actual.items() if value not in empties} == {
            key: value for key, value in expected.items() if value not in empties and key in channels
        }

    async def _add_task_writes(self, state: Mapping[str, Any]) -> None:
        """Store what the next nodes of a state left: the interrupts at which they wait, and errors."""
        config = self._name(state["checkpoint_id"])
        snapshot = await self._graph.aget_state(config)
        remaining = list(snapshot.tasks)

        for task in state["tasks"]:
            match = next((other for other in remaining if other.name == task["name"]), None)
            if match is None:
                continue

            remaining.remove(match)
            writes: list[tuple[str, Any]] = []
            if task.get("interrupts"):
                writes.append((INTERRUPT, tuple(map(_build_interrupt, task["interrupts"]))))
            if task.get("error"):
                writes.append((_ERROR, str(task["error"])))
            if writes:
                await self._staged.aput_writes(config, writes, match.id)

    async def store(self, stored: BaseCheckpointSaver[Any]) -> None:
        """Store the checkpoints that were accepted, with their metadata."""
        versions: dict[str, ChannelVersions] = {}
        for checkpoint_id, state in self._states.items():
            staged = await self._staged.aget_tuple(self._name(checkpoint_id))
            if staged is None:
                raise ValueError(f"checkpoint {checkpoint_id} is lost")

            parent_id = state.get("parent_checkpoint_id")
            configurable = {**self._config["configurable"], "checkpoint_ns": ""}
            if parent_id in versions:
                configurable["checkpoint_id"] = parent_id

            versions[checkpoint_id] = dict(staged.checkpoint["channel_versions"])
            before = versions.get(parent_id or "", {})
            new_versions = {
                name: version for name, version in versions[checkpoint_id].items() if before.get(name) != version
            }

            config: RunnableConfig = {**self._config, "configurable": configurable}
            await stored.aput(config, staged.checkpoint, staged.metadata, new_versions)

            writes: dict[str, list[tuple[str, Any]]] = {}
            for task_id, channel, value in staged.pending_writes or ():
                writes.setdefault(task_id, []).append((channel, value))

            configurable = {**configurable, "checkpoint_id": checkpoint_id}
            for task_id, task_writes in writes.items():
                await stored.aput_writes({**config, "configurable": configurable}, task_writes, task_id)


def restore_messages(value: Any) -> Any:
    """Return a value in which the dicts that are messages in JSON are messages again."""
    if isinstance(value, list):
        return [restore_messages(item) for item in value]
    if not isinstance(value, dict):
        return value

    if value.keys() >= _FIELDS_OF_MESSAGES and isinstance(value["type"], str):
        try:
            [message] = messages_from_dict([{"type": value["type"], "data": value}])
        except Exception:  # noqa: BLE001 - data that only looks like a message
            return value
        return message

    return {key: restore_messages(item) for key, item in value.items()}


def _expand(state: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a state from those of the state before it and the changes."""
    values = {key: value for key, value in before.items() if key not in (state.get("removed") or ())}
    values.update(state.get("values") or {})
    for key, items in (state.get("appended") or {}).items():
        if not isinstance(values.get(key), list):
            raise TypeError(f"{key} is no list, so nothing can be appended to it")
        values[key] = [*values[key], *items]

    return values


def _to_json(values: Any) -> Any:
    return json.loads(dump_user(values))


def _build_interrupt(fields: Mapping[str, Any]) -> Interrupt:
    """Return an interrupt with its id, if this version of langgraph stores ids."""
    try:
        interrupt: Interrupt = Interrupt(value=fields.get("value"), id=str(fields.get("id")))
    except TypeError:
        return Interrupt(value=fields.get("value"))

    return interrupt
