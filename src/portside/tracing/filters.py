"""The filter language of `Client.list_runs` in the langsmith SDK: `and(eq(run_type, "llm"), gt(latency, "5s"))`.

`parse_filter` turns text into a tree (`filter_parser.py`).
`compile_filter` turns the tree into a condition made of named queries, by a schema of the fields that runs, projects or
examples have.

In one `and`, comparisons of `feedback_key` and `feedback_score` refer to the same piece of feedback, and those of
`metadata_key` and `metadata_value` to the same metadata entry.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from portside.kernel.db import Query
from portside.kernel.errors import Invalid
from portside.kernel.http.json_validation import read_json
from portside.tracing.conditions import Condition, ConditionBuilder, negate, require_all, require_any
from portside.tracing.fields import parse_time
from portside.tracing.filter_parser import (
    FilterCall,
    FilterField,
    FilterInvalid,
    FilterValue,
    escape_for_json,
    parse_filter,
)
from portside.tracing.sql import sql

Slots = dict[str, tuple[str, list[Any]]]
"""The operator and the operands by slot, of comparisons that refer to the same item."""
_COMPARISONS = frozenset({"eq", "neq", "gt", "gte", "lt", "lte", "in", "search", "exists"})
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}


class PairedFields(NamedTuple):
    """Two fields that refer to the same item when one `and` compares both: a piece of feedback, a metadata entry."""

    query: Query
    slots: tuple[str, str]


class FilterSchema(msgspec.Struct, frozen=True):
    """The fields of runs, projects or examples, by how they are compared, each with its query."""

    texts: dict[str, Query]
    numbers: dict[str, Query]
    times: dict[str, Query]
    pairs: dict[str, PairedFields]
    searched: Query
    """Matches rows that contain a text in any field. `escaped` is the text as JSON writes it."""
    metadata: Query
    """Matches rows whose metadata contains an object."""
    metadata_key: Query | None = None
    """Matches rows whose metadata has a key."""
    tagged: Query | None = None
    any_tag: Query | None = None
    searched_fields: dict[str, Query] = {}
    """Fields of JSON, with the queries that search them for a text."""
    equal: dict[str, Query] = {}
    """Text fields whose equality has a query of its own, which an index serves."""
    root: Query | None = None

    def fields(self) -> list[str]:
        """Return the names of all fields that can be compared."""
        paired = [f"{name}_{slot}" for name, pair in self.pairs.items() for slot in pair.slots]
        special = [*(["tags"] if self.tagged else []), *(["is_root"] if self.root else [])]
        return sorted([*self.texts, *self.numbers, *self.times, *paired, *special])

    def pair(self, field: str) -> tuple[str, str] | None:
        """Return the pair of a field and its slot in the pair; None for a field of no pair."""
        pair_name, _, slot = field.partition("_")
        return (pair_name, slot) if pair_name in self.pairs and slot in self.pairs[pair_name].slots else None


RUN_FILTERS = FilterSchema(
    texts={
        "id": sql.when_id,
        "trace_id": sql.when_trace_id,
        "parent_run_id": sql.when_parent_run_id,
        "thread_id": sql.when_thread,
        "name": sql.when_name,
        "run_type": sql.when_run_type,
        "status": sql.when_status,
        "error": sql.when_error,
        "inputs": sql.when_inputs,
        "outputs": sql.when_outputs,
    },
    numbers={
        "latency": sql.when_latency,
        "total_tokens": sql.when_total_tokens,
        "prompt_tokens": sql.when_prompt_tokens,
        "completion_tokens": sql.when_completion_tokens,
        "prompt_cost": sql.when_prompt_cost,
        "completion_cost": sql.when_completion_cost,
        "total_cost": sql.when_total_cost,
        "trace_tokens": sql.when_trace_tokens,
        "trace_cost": sql.when_trace_cost,
        "execution_order": sql.when_execution_order,
    },
    times={"start_time": sql.when_start_time, "end_time": sql.when_end_time},
    pairs={
        "feedback": PairedFields(sql.when_feedback, ("key", "score")),
        "metadata": PairedFields(sql.when_metadata, ("key", "value")),
    },
    searched=sql.when_searched,
    searched_fields={"inputs": sql.when_inputs_searched, "outputs": sql.when_outputs_searched},
    metadata=sql.when_metadata_holds,
    tagged=sql.when_tagged,
    any_tag=sql.when_any_tag,
    equal={"thread_id": sql.when_in_thread, "status": sql.when_status_is},
    root=sql.when_root,
)
_WHOLE_TRACE_FIELDS = frozenset({"trace_tokens", "trace_cost", "execution_order"})
# For shared runs: comparing these fields would reveal what the rest of the trace used, or how many runs it has.
SHARED_RUN_FILTERS = msgspec.structs.replace(
    RUN_FILTERS,
    numbers={name: query for name, query in RUN_FILTERS.numbers.items() if name not in _WHOLE_TRACE_FIELDS},
)
PROJECT_FILTERS = FilterSchema(
    texts={
        "id": sql.when_project_id,
        "name": sql.when_project_name,
        "description": sql.when_project_description,
        "reference_dataset_id": sql.when_project_reference_dataset,
    },
    numbers={},
    times={"start_time": sql.when_project_start_time, "end_time": sql.when_project_end_time},
    pairs={"metadata": PairedFields(sql.when_project_metadata, ("key", "value"))},
    searched=sql.when_project_searched,
    metadata=sql.when_project_metadata_holds,
)


def compile_filter(text: str, builder: ConditionBuilder, schema: FilterSchema = RUN_FILTERS) -> Condition:
    """Parse a filter and return its condition. Raises FilterInvalid."""
    return _ConditionCompiler(builder, schema).compile(parse_filter(text))


class _ConditionCompiler:
    def __init__(self, builder: ConditionBuilder, schema: FilterSchema) -> None:
        self._builder = builder
        self._schema = schema

    def compile(self, tree: Any) -> Condition:
        """Return the condition of a call."""
        if not isinstance(tree, FilterCall):
            raise FilterInvalid.at(tree.offset, "expected a call")

        match tree.name:
            case "and":
                return self._all(tree.arguments)
            case "or":
                return require_any([self.compile(part) for part in tree.arguments])
            case "not" if len(tree.arguments) == 1:
                return negate(self.compile(tree.arguments[0]))
            case "search" if len(tree.arguments) == 1:
                return self._search(self._schema.searched, _parse_text(tree.arguments[0]))
            case "has" if len(tree.arguments) == 2:
                return self._has(*tree.arguments)

        return self._compare(tree)

    def _search(self, query: Query, text: str) -> Condition:
        values = {"value": text, "escaped": escape_for_json(text)}
        return self._builder.build(query, **{name: values[name] for name in query.parameters})

    def _all(self, parts: list[Any]) -> Condition:
        conditions: list[Condition] = []
        groups: dict[str, list[Slots]] = {pair_name: [] for pair_name in self._schema.pairs}
        for part in parts:
            pair = self._schema.pair(_get_field(part))
            if pair and part.name in _COMPARISONS:
                pair_name, slot = pair
                _add_to_pair(groups[pair_name], slot, _read_pair(part, slot))
            else:
                conditions.append(self.compile(part))

        for pair_name, group_slots in groups.items():
            conditions += [self._compare_pair(pair_name, slots) for slots in group_slots]

        return require_all(conditions)

    def _compare_pair(self, pair_name: str, slots: Slots) -> Condition:
        query, names = self._schema.pairs[pair_name]
        values: dict[str, Any] = {}
        for name in names:
            values[f"{name}_op"], values[f"{name}_value"] = slots.get(name, (None, []))

        return self._builder.build(query, **values)

    def _has(self, field: Any, value: Any) -> Condition:
        schema = self._schema
        name = _get_name(field)
        if name == "tags" and schema.tagged:
            return self._builder.build(schema.tagged, value=[_parse_text(value)])

        if name == "metadata":
            is_key = not _parse_text(value).lstrip().startswith("{")
            if is_key and schema.metadata_key:
                return self._builder.build(schema.metadata_key, value=_parse_text(value))

            return self._builder.build(schema.metadata, value=_parse_object(value))

        raise FilterInvalid.at(field.offset, f"has() is for {'tags and ' if schema.tagged else ''}metadata")

    def _compare(self, call: FilterCall) -> Condition:
        if call.name not in _COMPARISONS:
            functions = ", ".join(sorted({"and", "or", "not", "has", *_COMPARISONS}))
            problem = f"there is no function {call.name}() with {len(call.arguments)} arguments"
            raise FilterInvalid.at(call.offset, f"{problem}; use one of {functions}")

        field = _get_field(call)
        schema = self._schema
        asks_for_key = field == "metadata" and call.name == "exists" and len(call.arguments) == 2
        if asks_for_key and schema.metadata_key:
            return self._builder.build(schema.metadata_key, value=_parse_text(call.arguments[1]))

        if pair := schema.pair(field):
            pair_name, slot = pair
            return self._compare_pair(pair_name, {slot: _read_pair(call, slot)})

        if field == "tags" and schema.tagged and schema.any_tag:
            return self._tags(call, schema.tagged, schema.any_tag)
        if field == "is_root" and schema.root:
            return self._root(call, schema.root)

        special = self._special(call, field)
        if special is not None:
            return special

        for fields, parse in (
            (schema.texts, _parse_text),
            (schema.numbers, _parse_number),
            (schema.times, _parse_time),
        ):
            if field in fields:
                return self._plain(call, fields[field], parse)

        raise self._unknown_field(call, field)

    def _special(self, call: FilterCall, field: str) -> Condition | None:
        """Return the condition of a comparison that has a query of its own."""
        schema = self._schema
        operand = call.arguments[-1] if call.arguments else None
        is_text = isinstance(operand, FilterValue) and isinstance(operand.value, str)
        if call.name == "eq" and field in schema.equal and is_text:
            return self._builder.build(schema.equal[field], value=_parse_operands(call, _parse_text)[0])
        if call.name == "search" and field in schema.searched_fields:
            return self._search(schema.searched_fields[field], _parse_operands(call, _parse_text)[0])

        return None

    def _unknown_field(self, call: FilterCall, field: str) -> FilterInvalid:
        offset = call.arguments[0].offset if call.arguments else call.offset
        problem = f"there is no field {field} here" if field else f"the first argument of {call.name}() must be a field"
        return FilterInvalid.at(offset, f"{problem}; use one of {', '.join(self._schema.fields())}")

    def _root(self, call: FilterCall, query: Query) -> Condition:
        value = _parse_operands(call, _parse_flag)[0] if call.name in {"eq", "neq"} else None
        if value is None:
            raise FilterInvalid.at(call.offset, "is_root supports eq and neq only")

        return self._builder.build(query, value=value == (call.name == "eq"))

    def _plain(self, call: FilterCall, query: Query, parse: Callable[[Any], Any]) -> Condition:
        if call.name == "search" and parse is not _parse_text:
            raise FilterInvalid.at(call.offset, "search() supports text fields only")

        last = call.arguments[-1]
        compares_null = isinstance(last, FilterValue) and last.value is None and len(call.arguments) == 2
        if call.name in {"eq", "neq"} and compares_null:
            exists = self._builder.build(query, op="exists", value=[])
            return exists if call.name == "neq" else negate(exists)

        return self._builder.build(query, op=call.name, value=_parse_operands(call, parse))

    def _tags(self, call: FilterCall, query: Query, any_tag: Query) -> Condition:
        if call.name == "exists":
            return self._builder.build(any_tag)
        if call.name not in {"eq", "neq", "in"}:
            raise FilterInvalid.at(call.offset, f"tags do not support {call.name}()")

        tagged = self._builder.build(query, value=_parse_operands(call, _parse_text))
        return negate(tagged) if call.name == "neq" else tagged


def _get_field(part: Any) -> str:
    """Return the field that a call compares; an empty text for anything else."""
    return _get_name(part.arguments[0]) if isinstance(part, FilterCall) and part.arguments else ""


def _get_name(part: Any) -> str:
    """Return the name of a field, which may be in quotes."""
    if isinstance(part, FilterField):
        return part.name
    return part.value if isinstance(part, FilterValue) and isinstance(part.value, str) else ""


def _read_pair(call: FilterCall, slot: str) -> tuple[str, list[Any]]:
    return call.name, _parse_operands(call, _parse_number if slot == "score" else _parse_text)


def _add_to_pair(groups: list[Slots], slot: str, comparison: tuple[str, list[Any]]) -> None:
    """Add a comparison to the latest group; if the group has that slot, begin another group with the same key."""
    if groups and slot not in groups[-1]:
        groups[-1][slot] = comparison
    elif groups and slot != "key" and "key" in groups[-1]:
        groups.append({"key": groups[-1]["key"], slot: comparison})
    else:
        groups.append({slot: comparison})


def _parse_operands(call: FilterCall, parse: Callable[[Any], Any]) -> list[Any]:
    """Return the values that the field is compared with. Raises FilterInvalid for a wrong number of arguments."""
    if len(call.arguments) != (1 if call.name == "exists" else 2):
        expected = "a field alone" if call.name == "exists" else "a field and a value"
        raise FilterInvalid.at(call.offset, f"{call.name}() takes {expected}, not {len(call.arguments)} arguments")

    if call.name == "exists":
        return []

    operand = call.arguments[1]
    if call.name != "in":
        return [parse(operand)]
    if not (isinstance(operand, FilterValue) and isinstance(operand.value, list)):
        raise FilterInvalid.at(operand.offset, "in() expects a list: [1, 2]")

    return [parse(FilterValue(item, operand.offset)) for item in operand.value]


def _parse_text(part: Any) -> str:
    value = part.value if isinstance(part, FilterValue) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)

    raise FilterInvalid.at(part.offset, "expected a string")


def _parse_number(part: Any) -> float:
    value = part.value if isinstance(part, FilterValue) else None
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * _SECONDS[match[2]]

    raise FilterInvalid.at(part.offset, 'expected a number, or a duration such as "5s"')


def _parse_flag(part: Any) -> bool:
    value = part.value if isinstance(part, FilterValue) else None
    if isinstance(value, bool):
        return value

    raise FilterInvalid.at(part.offset, "expected true or false")


def _parse_time(part: Any) -> datetime:
    moment = None
    if isinstance(part, FilterValue) and isinstance(part.value, str):
        with suppress(Invalid):
            moment = parse_time(part.value, "filter")

    if moment is None:
        raise FilterInvalid.at(part.offset, "expected an ISO 8601 time")

    return moment


def _parse_object(part: Any) -> dict[str, Any]:
    """Return the object in a string. Some clients escape it for the filter, others write the JSON as it is."""
    for text in (_parse_text(part), part.source):
        try:
            value = read_json(text.encode())
        except Invalid:
            continue

        if isinstance(value, dict):
            return value

    raise FilterInvalid.at(part.offset, "expected a string that contains a JSON object")
