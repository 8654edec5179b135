"""The attributes and events of one span, read by their names and by the prefixes of their names.

It remembers which attributes were read. The others become metadata of the run, so that nothing is lost.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from portside.tracing.otlp_values import decode_list, nest
from portside.tracing.otlp_wire import Span, SpanEvent

# Four digits: a list has at most 10,000 items.
_INDEX = re.compile(r"\d{1,4}")
# An attribute of Logfire and Pydantic AI that holds the events of a span.
_EVENTS = "events"
_EVENT_NAME = "event.name"
# An event of the semantic conventions whose attributes are those of its span.
_DETAILS_EVENT = "gen_ai.client.inference.operation.details"


class SpanAttributes:
    """The attributes of a span."""

    def __init__(self, span: Span) -> None:
        self._values = span.attributes
        self.read: set[str] = set()
        """The names of the attributes that were read."""
        self.events = [event for event in span.events if event.name != _DETAILS_EVENT]
        self._details = [event.attributes for event in span.events if event.name == _DETAILS_EVENT]

        self._add_events()

    @property
    def values(self) -> Mapping[str, Any]:
        """All attributes of the span."""
        return self._values

    def first(self, *names: str) -> Any:
        """Return the first of these attributes that is set."""
        value = None
        for name in names:
            if name in self._values:
                self.read.add(name)
                value = self._values[name] if value is None else value

        return value

    def text(self, *names: str) -> str | None:
        """Return the first of these attributes as text."""
        value = self.first(*names)
        return None if value is None else str(value)

    def items(self, name: str) -> list[Any]:
        """Return the items of an attribute that is a list: of the span, then of its events with details."""
        found = decode_list(self._values.get(name))
        if found:
            self.read.add(name)

        for details in self._details:
            found += decode_list(details.get(name))

        return found

    def numbered(self, *prefixes: str) -> list[Any]:
        """Return the items of the first list that has numbered attributes, such as `gen_ai.prompt.0.role`."""
        for prefix in prefixes:
            names = [name for name in self._values if name.startswith(prefix) and _is_numbered(name, prefix)]
            if names:
                self.read.update(names)
                items = nest({name.removeprefix(prefix): self._values[name] for name in names})
                return [items[index] for index in sorted(items, key=int)]

        return []

    def below(self, prefix: str) -> dict[str, Any]:
        """Return the attributes whose names begin with a prefix, without it."""
        names = [name for name in self._values if name.startswith(prefix) and len(name) > len(prefix)]
        self.read.update(names)
        return {name.removeprefix(prefix): self._values[name] for name in names}

    def rest(self) -> dict[str, Any]:
        """Return the attributes that were not read."""
        return {name: value for name, value in self._values.items() if name not in self.read}

    def _add_events(self) -> None:
        """Add the events that an attribute holds."""
        events = decode_list(self._values.get(_EVENTS))
        if not events or not all(
            isinstance(event, dict) and isinstance(event.get(_EVENT_NAME), str) for event in events
        ):
            return

        self.read.add(_EVENTS)

        for event in events:
            self.events.append(SpanEvent(event[_EVENT_NAME], None, _omit(event, {_EVENT_NAME})))


def _is_numbered(name: str, prefix: str) -> bool:
    index, dot, _rest = name[len(prefix) :].partition(".")
    return bool(dot) and _INDEX.fullmatch(index) is not None


def _omit(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
