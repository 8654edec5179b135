"""From the events of a thread's log to events of the event streaming protocol.

A `Converter` turns each event of the log into events of the protocol; an `AgentTree` notes which subgraphs run.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from portside.agent.streams.events import PROTOCOL_ONLY, STATE_UPDATE, StreamEvent
from portside.executor.requests import INTERRUPT, INTERRUPT_IDS, LifecycleEvent
from portside.kernel.codec import dump_api, load

if TYPE_CHECKING:
    from portside.executor.channels import Channels


_CONVERTED = frozenset({"updates", "messages", "custom", "tasks", "checkpoints"})
_INTERRUPT_KEY = b'"__interrupt__"'
_TERMINAL = frozenset({LifecycleEvent.COMPLETED, LifecycleEvent.FAILED, LifecycleEvent.INTERRUPTED})

Namespace = tuple[str, ...]


class AgentTree:
    """The graph of a thread's newest run and its subgraphs, with the status that the lifecycle events give them."""

    def __init__(self) -> None:
        self.run_id: str | None = None
        self._nodes: dict[Namespace, dict[str, str]] = {}

    @property
    def is_running(self) -> bool:
        """Whether the run continues."""
        root = self._nodes.get(())
        return root is not None and root["status"] not in _TERMINAL

    def apply(self, run_id: str, namespace: Namespace, data: dict[str, Any]) -> None:
        """Apply a lifecycle event; a run that starts replaces the one before it."""
        if not namespace and data["event"] == LifecycleEvent.RUNNING:
            self.run_id = run_id
            self._nodes = {}

        node_name = namespace[-1].partition(":")[0] if namespace else ""
        self._nodes[namespace] = {"status": data["event"], "graph_name": data.get("graph_name") or node_name}

    def list_unfinished(self) -> list[Namespace]:
        """Return the subgraphs that have not ended, the innermost first."""
        running = [
            namespace for namespace, node in self._nodes.items() if namespace and node["status"] not in _TERMINAL
        ]
        return sorted(running, key=len, reverse=True)

    def as_json(self, namespace: Namespace = ()) -> dict[str, Any]:
        """Return a node with everything below it, as the protocol's `AgentTreeNode`."""
        children = [self.as_json(ns) for ns in self._nodes if ns[:-1] == namespace and ns != namespace]
        node = {"namespace": list(namespace), **self._nodes[namespace]}
        return {**node, "children": children} if children else node


class ConvertedEvent(NamedTuple):
    """An event of the protocol, before it has a number."""

    event_id: str
    method: str
    namespace: Namespace
    data: bytes


class Converter:
    """Converts the events of one run.

    A run that was started over the protocol emits channel events itself. The events of any other run are converted
    here, as `executor/channels.py` does it while a graph runs.
    """

    def __init__(self, run_id: UUID | None, tree: AgentTree) -> None:
        self._run_id = str(run_id)
        self._tree = tree
        self._channels: Channels | None = None
        self._namespaces_of_interrupts: dict[str, Namespace] = {}
        self._last_values: dict[Namespace, int] = {}

    def convert(self, event: StreamEvent) -> Iterator[ConvertedEvent]:
        """Yield the protocol's events for an event, if there are any."""
        name, _, path = event.name.partition("|")
        namespace = tuple(path.split("|")) if path else ()
        if name.startswith(PROTOCOL_ONLY):
            yield from self._convert_channel_event(event, name.removeprefix(PROTOCOL_ONLY), namespace)
        elif name == "values":
            yield from self._convert_values(event, namespace)
        elif name == STATE_UPDATE:
            yield ConvertedEvent(event.event_id, "values", (), dump_api(load(event.data)["values"]))
        elif name in _CONVERTED:
            for method, channel_namespace, data in self._get_channels().convert(namespace, name, load(event.data)):
                yield from self._convert_channel_event(event, method, channel_namespace, dump_api(data))

    def _get_channels(self) -> "Channels":
        """Return the converter of langgraph's own events, whose libraries are imported when the first one comes."""
        if self._channels is None:
            from portside.executor.channels import Channels

            self._channels = Channels()

        return self._channels

    def _convert_channel_event(
        self, event: StreamEvent, method: str, namespace: Namespace, data: bytes | None = None
    ) -> Iterator[ConvertedEvent]:
        data = event.data if data is None else data
        if method == INTERRUPT_IDS:
            for interrupt_id in load(data):
                # The innermost graph emits it first.
                self._namespaces_of_interrupts.setdefault(interrupt_id, namespace)
        elif method == "lifecycle":
            yield from self._convert_lifecycle(namespace, data)
        elif method == "input.requested":
            interrupt_id = load(data)["interrupt_id"]
            innermost = self._namespaces_of_interrupts.get(interrupt_id, ())
            yield ConvertedEvent(self._synthetic_id("input", innermost, interrupt_id), method, innermost, data)
        else:
            yield ConvertedEvent(event.event_id, method, namespace, data)

    def _convert_lifecycle(self, namespace: Namespace, data: bytes) -> Iterator[ConvertedEvent]:
        change: dict[str, Any] = load(data)
        is_start = change["event"] == LifecycleEvent.RUNNING
        is_current = is_start or self._tree.run_id == self._run_id
        if is_current and not is_start and not namespace:
            # A subgraph emits nothing any more when its run is stopped: end it here.
            for child in self._tree.list_unfinished():
                end = {"event": change["event"], "graph_name": child[-1].partition(":")[0]}
                yield from self._convert_lifecycle(child, dump_api(end))

        if is_current:
            self._tree.apply(self._run_id, namespace, change)

        event_id = self._synthetic_id("lc", namespace, change["event"])
        yield ConvertedEvent(event_id, "lifecycle", namespace, data)

    def _convert_values(self, event: StreamEvent, namespace: Namespace) -> Iterator[ConvertedEvent]:
        """Yield the state if it has changed, without its interrupts, which have their own channel."""
        data = event.data
        if _INTERRUPT_KEY in data:
            values = load(data)
            if isinstance(values, dict) and values.pop(INTERRUPT, None) is not None:
                data = dump_api(values)
                if not values or hash(data) == self._last_values.get(namespace):
                    return

        self._last_values[namespace] = hash(data)
        yield ConvertedEvent(event.event_id, "values", namespace, data)

    def _synthetic_id(self, kind: str, namespace: Namespace, detail: str) -> str:
        return f"synth:{self._run_id}:{kind}|{'|'.join(namespace)}|{detail}"
