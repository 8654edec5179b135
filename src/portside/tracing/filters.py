"""What a filter means: from the tree of `filter_language` to a condition of named statements (`vocabularies`).

In one `and`, comparisons of `feedback_key` and `feedback_score` speak of one piece of feedback, those of `metadata_key`
and `metadata_value` of one entry.
"""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from portside.kernel.errors import Invalid
from portside.kernel.http.vetting import read_json
from portside.kernel.queries import Query
from portside.tracing.conditions import Condition, Conditions, all_of, any_of, none_of
from portside.tracing.fields import moment
from portside.tracing.filter_language import Call, FilterInvalid, Value, Word, parse
from portside.tracing.vocabularies import RUNS, Vocabulary

_COMPARISONS = frozenset({"eq", "neq", "gt", "gte", "lt", "lte", "in", "search", "exists"})
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}
Slots = dict[str, tuple[str, list[Any]]]


def read_filter(text: str, conditions: Conditions, vocabulary: Vocabulary = RUNS) -> Condition:
    """Read a filter into a condition. Raises FilterInvalid."""
    return _Meaning(conditions, vocabulary).of(parse(text))


class _Meaning:
    def __init__(self, conditions: Conditions, vocabulary: Vocabulary) -> None:
        self._conditions = conditions
        self._vocabulary = vocabulary

    def of(self, tree: Any) -> Condition:
        """Return what a call means."""
        if not isinstance(tree, Call):
            raise FilterInvalid.at(tree.place, "expected a call")
        match tree.name:
            case "and":
                return self._all(tree.arguments)
            case "or":
                return any_of([self.of(part) for part in tree.arguments])
            case "not" if len(tree.arguments) == 1:
                return none_of(self.of(tree.arguments[0]))
            case "search" if len(tree.arguments) == 1:
                return self._conditions.of(self._vocabulary.searched, value=_text(tree.arguments[0]))
            case "has" if len(tree.arguments) == 2:
                return self._has(*tree.arguments)
        return self._compared(tree)

    def _all(self, parts: list[Any]) -> Condition:
        found: list[Condition] = []
        groups: dict[str, list[Slots]] = {family: [] for family in self._vocabulary.families}
        for part in parts:
            pair = self._vocabulary.pair(_field(part))
            if pair and part.name in _COMPARISONS:
                family, slot = pair
                _lay_beside(groups[family], slot, _read_pair(part, slot))
            else:
                found.append(self.of(part))
        pairs = [self._paired(family, slots) for family, every in groups.items() for slots in every]
        return all_of([*found, *pairs])

    def _paired(self, family: str, slots: Slots) -> Condition:
        query, names = self._vocabulary.families[family]
        values: dict[str, Any] = {}
        for name in names:
            values[f"{name}_op"], values[f"{name}_value"] = slots.get(name, (None, []))
        return self._conditions.of(query, **values)

    def _has(self, field: Any, wanted: Any) -> Condition:
        words = self._vocabulary
        if isinstance(field, Word) and field.name == "tags" and words.tagged:
            return self._conditions.of(words.tagged, value=[_text(wanted)])
        if isinstance(field, Word) and field.name == "metadata":
            return self._conditions.of(words.metadata, value=_object(wanted))
        raise FilterInvalid.at(field.place, f"has() is for {'tags and ' if words.tagged else ''}metadata")

    def _compared(self, call: Call) -> Condition:
        if call.name not in _COMPARISONS:
            raise FilterInvalid.at(call.place, f"there is no {call.name}() of {len(call.arguments)} arguments")
        field, words = _field(call), self._vocabulary
        if field == "metadata" and call.name == "exists" and len(call.arguments) == 2 and words.metadata_key:
            return self._conditions.of(words.metadata_key, value=_text(call.arguments[1]))
        if pair := words.pair(field):
            family, slot = pair
            return self._paired(family, {slot: _read_pair(call, slot)})
        if field == "tags" and words.tagged and words.any_tag:
            return self._tags(call, words.tagged, words.any_tag)
        if field == "is_root" and words.root:
            return self._root(call, words.root)
        for fields, read in ((words.texts, _text), (words.numbers, _number), (words.times, _time)):
            if field in fields:
                return self._plain(call, fields[field], read)
        place = call.arguments[0].place if call.arguments else call.place
        raise FilterInvalid.at(place, f"{call.name}() wants the name of a field first")

    def _root(self, call: Call, query: Query) -> Condition:
        value = _operands(call, _flag)[0] if call.name in {"eq", "neq"} else None
        if value is None:
            raise FilterInvalid.at(call.place, "is_root is compared by eq and neq")
        return self._conditions.of(query, value=value == (call.name == "eq"))

    def _plain(self, call: Call, query: Query, read: Callable[[Any], Any]) -> Condition:
        if call.name == "search" and read is not _text:
            raise FilterInvalid.at(call.place, "search() is for texts")
        last = call.arguments[-1]
        if call.name in {"eq", "neq"} and isinstance(last, Value) and last.value is None:
            exists = self._conditions.of(query, op="exists", value=[])
            return exists if call.name == "neq" else none_of(exists)
        return self._conditions.of(query, op=call.name, value=_operands(call, read))

    def _tags(self, call: Call, query: Query, any_tag: Query) -> Condition:
        if call.name == "exists":
            return self._conditions.of(any_tag)
        if call.name not in {"eq", "neq", "in"}:
            raise FilterInvalid.at(call.place, f"{call.name}() is not for tags")
        tagged = self._conditions.of(query, value=_operands(call, _text))
        return none_of(tagged) if call.name == "neq" else tagged


def _field(part: Any) -> str:
    first = part.arguments[0] if isinstance(part, Call) and part.arguments else None
    return first.name if isinstance(first, Word) else ""


def _read_pair(call: Call, slot: str) -> tuple[str, list[Any]]:
    return call.name, _operands(call, _number if slot == "score" else _text)


def _lay_beside(groups: list[Slots], slot: str, read: tuple[str, list[Any]]) -> None:
    """Put a comparison to the latest group; where that has one already, begin another, of the same key."""
    if groups and slot not in groups[-1]:
        groups[-1][slot] = read
    elif groups and slot != "key" and "key" in groups[-1]:
        groups.append({"key": groups[-1]["key"], slot: read})
    else:
        groups.append({slot: read})


def _operands(call: Call, read: Callable[[Any], Any]) -> list[Any]:
    """Return what the field is compared with. Raises FilterInvalid for a wrong number of values."""
    if len(call.arguments) != (1 if call.name == "exists" else 2):
        raise FilterInvalid.at(call.place, f"wrong number of arguments of {call.name}()")
    if call.name == "exists":
        return []
    given = call.arguments[1]
    if call.name != "in":
        return [read(given)]
    if not (isinstance(given, Value) and isinstance(given.value, list)):
        raise FilterInvalid.at(given.place, "in() wants a list: [1, 2]")
    return [read(Value(item, given.place)) for item in given.value]


def _text(part: Any) -> str:
    value = part.value if isinstance(part, Value) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise FilterInvalid.at(part.place, "expected a text")


def _number(part: Any) -> float:
    value = part.value if isinstance(part, Value) else None
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * _SECONDS[match[2]]
    raise FilterInvalid.at(part.place, "expected a number")


def _flag(part: Any) -> bool:
    value = part.value if isinstance(part, Value) else None
    if isinstance(value, bool):
        return value
    raise FilterInvalid.at(part.place, "expected true or false")


def _time(part: Any) -> datetime:
    try:
        read = moment(part.value, "filter") if isinstance(part, Value) and isinstance(part.value, str) else None
    except Invalid:
        read = None
    if read is None:
        raise FilterInvalid.at(part.place, "expected an ISO 8601 time")
    return read


def _object(part: Any) -> dict[str, Any]:
    try:
        value = read_json(_text(part).encode())
    except Invalid:
        value = None
    if not isinstance(value, dict):
        raise FilterInvalid.at(part.place, "expected a text that holds a JSON object")
    return value
