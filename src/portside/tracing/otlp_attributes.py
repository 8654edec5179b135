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
        self.read_names: set[str] = set()
        """The names of the attributes that were read."""
        self.events = [event for event in span.events if event.name != _DETAILS_EVENT]
        self._details = [event.attributes for event in span.events if event.name == _DETAILS_EVENT]

        self._add_events()

    @property
    def values(self) -> Mapping[str, Any]:
        """All attributes of the span."""
        return self._values

    def read_first(self, *names: str) -> Any:
        """Return the first of these attributes that is set."""
        value = None
        for name in names:
            if name in self._values:
                self.read_names.add(name)
                value = self._values[name] if value is None else value

        return value

    def read_text(self, *names: str) -> str | None:
        """Return the first of these attributes as text."""
        value = self.read_first(*names)
        return None if value is None else str(value)

    def read_items(self, name: str) -> list[Any]:
        """Return the items of an attribute that is a list: of the span, then of its events with details."""
        items = decode_list(self._values.get(name))
        if items:
            self.read_names.add(name)

        for details in self._details:
            items += decode_list(details.get(name))

        return items

    def read_numbered(self, *prefixes: str) -> list[Any]:
        """Return the items of the first list that has numbered attributes, such as `gen_ai.prompt.0.role`."""
        for prefix in prefixes:
            names = [name for name in self._values if name.startswith(prefix) and _is_numbered(name, prefix)]
            if names:
                self.read_names.update(names)
                items = nest({name.removeprefix(prefix): self._values[name] for name in names})
                return [items[index] for index in sorted(items, key=int)]

        return []

    def read_below(self, prefix: str) -> dict[str, Any]:
        """Return the attributes whose names begin with a prefix, without it."""
        names = [name for name in self._values if name.startswith(prefix) and len(name) > len(prefix)]
        self.read_names.update(names)
        return {name.removeprefix(prefix): self._values[name] for name in names}

    def list_unread(self) -> dict[str, Any]:
        """Return the attributes that were not read."""
        return {name: value for name, value in self._values.items() if name not in self.read_names}

    def _add_events(self) -> None:
        """Add the events that an attribute holds."""
        events = decode_list(self._values.get(_EVENTS))
        have_names = all(isinstance(event, dict) and isinstance(event.get(_EVENT_NAME), str) for event in events)
        if not events or not have_names:
            return

        self.read_names.add(_EVENTS)
        for event in events:
            self.events.append(SpanEvent(event[_EVENT_NAME], None, _omit(event, {_EVENT_NAME})))


def _is_numbered(name: str, prefix: str) -> bool:
    index, dot, _rest = name[len(prefix) :].partition(".")
    return bool(dot) and _INDEX.fullmatch(index) is not None


def _omit(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
