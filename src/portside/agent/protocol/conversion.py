"""From the events that a thread's feed keeps to those of the protocol.

A run that was started over the protocol brought its channel events along; of any other run what its own stream modes
told is converted here, the way `graphs.channels` does it while a graph runs.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

from portside.agent.graphs.channels import ASKED, INTERRUPT, Channels
from portside.agent.protocol.tree import Tree
from portside.agent.streams.events import PROTOCOL_ONLY, Event
from portside.agent.streams.threads import STATE_UPDATE
from portside.kernel.codec import dump_api, load

_CONVERTED = frozenset({"updates", "messages", "custom", "tasks", "checkpoints"})
_INTERRUPT_KEY = b'"__interrupt__"'

Namespace = tuple[str, ...]


class Made(NamedTuple):
    """What one event became, short of its number."""

    event_id: str
    method: str
    namespace: Namespace
    data: bytes


class Converter:
    """Converts the events of one run."""

    def __init__(self, run_id: UUID | None, tree: Tree) -> None:
        self._run_id = str(run_id)
        self._tree = tree
        self._channels = Channels()
        self._asked_in: dict[str, Namespace] = {}
        self._last_values: dict[Namespace, int] = {}

    def convert(self, event: Event) -> Iterator[Made]:
        """Yield what an event becomes, if anything."""
        name, _, rest = event.name.partition("|")
        namespace = tuple(rest.split("|")) if rest else ()
        if name.startswith(PROTOCOL_ONLY):
            yield from self._own(event, name.removeprefix(PROTOCOL_ONLY), namespace)
        elif name == "values":
            yield from self._values(event, namespace)
        elif name == STATE_UPDATE:
            yield Made(event.event_id, "values", (), dump_api(load(event.data)["values"]))
        elif name in _CONVERTED:
            for method, where, data in self._channels.convert(namespace, name, load(event.data)):
                yield from self._own(event, method, where, dump_api(data))

    def _own(self, event: Event, method: str, namespace: Namespace, data: bytes | None = None) -> Iterator[Made]:
        data = event.data if data is None else data
        if method == ASKED:
            for interrupt_id in load(data):
                # The innermost tells it first.
                self._asked_in.setdefault(interrupt_id, namespace)
        elif method == "lifecycle":
            yield from self._lifecycle(namespace, data)
        elif method == "input.requested":
            interrupt_id = load(data)["interrupt_id"]
            where = self._asked_in.get(interrupt_id, ())
            yield Made(self._synthetic("input", where, interrupt_id), method, where, data)
        else:
            yield Made(event.event_id, method, namespace, data)

    def _lifecycle(self, namespace: Namespace, data: bytes) -> Iterator[Made]:
        told: dict[str, Any] = load(data)
        is_current = told["event"] == "running" or self._tree.run_id == self._run_id
        if not namespace and told["event"] != "running" and is_current:
            # What a subgraph could not say any more when its run was stopped.
            for child in self._tree.unfinished():
                yield from self._lifecycle(child, dump_api({"event": told["event"], "graph_name": _name(child)}))
        if is_current:
            self._tree.note(self._run_id, namespace, told)
        yield Made(self._synthetic("lc", namespace, told["event"]), "lifecycle", namespace, data)

    def _values(self, event: Event, namespace: Namespace) -> Iterator[Made]:
        """Tell the state without its questions, which have a channel of their own, and never twice the same."""
        data = event.data
        if _INTERRUPT_KEY in data:
            values = load(data)
            if isinstance(values, dict) and values.pop(INTERRUPT, None) is not None:
                data = dump_api(values)
                if not values or hash(data) == self._last_values.get(namespace):
                    return
        self._last_values[namespace] = hash(data)
        yield Made(event.event_id, "values", namespace, data)

    def _synthetic(self, kind: str, namespace: Namespace, what: str) -> str:
        return f"synth:{self._run_id}:{kind}|{'|'.join(namespace)}|{what}"


def _name(namespace: Namespace) -> str:
    return namespace[-1].partition(":")[0]
