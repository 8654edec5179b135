"""Token counts in the attributes of OpenTelemetry's spans, as the usage of a run.

Each instrumentation has its own names for the same counts, such as `gen_ai.usage.cache_read.input_tokens`,
`gen_ai.usage.details.cache_read_tokens`, `llm.token_count.prompt_details.cache_read` and `ai.usage.cachedInputTokens`.
They are read word by word, so that a name that nobody has listed here is understood too.

Input tokens include those of a cache and audio, as the semantic conventions say. Some instrumentations report them
without the cache: their count is raised where that shows in the numbers.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from portside.kernel.user_json import dump_user
from portside.tracing.otlp_values import decode_object, decode_text, nest

INPUT = "input_tokens"
OUTPUT = "output_tokens"
TOTAL = "total_tokens"
INPUT_DETAILS = "input_token_details"
OUTPUT_DETAILS = "output_token_details"
_USAGE = "usage_metadata"
# An attribute with a whole usage, the first one that is set wins.
_WHOLE = ("langsmith.usage_metadata", "langsmith.metadata.usage_metadata")
_DETAIL_OBJECTS = {
    "gen_ai.usage.input_token_details": INPUT_DETAILS,
    "gen_ai.usage.output_token_details": OUTPUT_DETAILS,
}
# The usage as the provider reported it. Its parts are read alone: providers count input tokens in different ways.
_RAW = "gen_ai.usage.raw"
_MAX_RAW_DEPTH = 3
# Counts with one of these prefixes, the first one wins.
_PREFIXES = ("gen_ai.usage.", "llm.token_count.", "llm.usage.", "ai.usage.")
_WORD = re.compile(r"[a-z]+|[A-Z][a-z]*|\d+[a-z]+|\d+")
_NUMBER = re.compile(r"\s*\+?\d{1,15}(\.\d{0,15})?\s*")
# Details as JSON, or as Python prints a dictionary.
_ENTRY = re.compile(r"""["']([A-Za-z0-9_]{1,100})["']\s*:\s*(\d{1,15}(?:\.\d{1,15})?)(?=\s*[,}])""")
_MAX_COUNT = 10**15
_MAX_ATTRIBUTE_CHARS = 200
_MAX_DETAILS_CHARS = 10_000
_SIDES = {
    "input": INPUT,
    "inputs": INPUT,
    "prompt": INPUT,
    "prompts": INPUT,
    "output": OUTPUT,
    "outputs": OUTPUT,
    "completion": OUTPUT,
    "completions": OUTPUT,
    "total": TOTAL,
}
_REASONING_WORDS = frozenset({"reasoning", "thinking", "thoughts", "thought"})
_CACHE_WORDS = frozenset({"cache", "cached", "caching"})
_WRITE_WORDS = frozenset({"write", "writes", "written", "creation", "create", "created"})
# Of tokens that no cache had, such as `noCacheTokens`.
_OTHER_WORDS = frozenset({"no", "miss", "missed", "uncached"})
# Words of a plain count. With any other word it is a part of the count, or something else.
_PLAIN_WORDS = frozenset({"token", "tokens", "count", "usage"})


def read_usage(
    attributes: Mapping[str, Any], stored_usage: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], set[str]]:
    """Return the usage that attributes report, and the names of those that were read.

    What `stored_usage` has wins over the attributes. A count may be a number or text; a negative count, and one
    that is not finite, counts as not reported.
    """
    usage = _Usage()
    usage.add_whole(stored_usage or {})
    for name, whole in _find_whole_usages(attributes):
        usage.add_whole(whole)
        usage.names.add(name)

    for name, side in _DETAIL_OBJECTS.items():
        details = _read_details(attributes.get(name))
        usage.add_details(side, details)
        if details:
            usage.names.add(name)

    usage.add_raw(decode_object(attributes.get(_RAW)))

    for prefix in _PREFIXES:
        for name, value in attributes.items():
            if name.startswith(prefix) and len(name) <= _MAX_ATTRIBUTE_CHARS:
                usage.add_attribute(name, name.removeprefix(prefix), value)

    return _complete(usage.counts, usage.details), usage.names


class _Usage:
    """What has been read of a usage. What was read first wins, except that of two equal details the larger one does."""

    def __init__(self) -> None:
        self.counts: dict[str, Any] = {}
        self.details: dict[str, dict[str, Any]] = {INPUT_DETAILS: {}, OUTPUT_DETAILS: {}}
        self.names: set[str] = set()
        """The names of the attributes that were read."""

    def add_whole(self, whole: Mapping[str, Any]) -> None:
        """Add a usage in LangChain's form. What is no count, such as costs, stays as it is."""
        for key, value in whole.items():
            if key in self.details:
                self.add_details(key, value)
            elif key in {INPUT, OUTPUT, TOTAL}:
                count = read_count(value)
                if count is not None:
                    self.counts.setdefault(key, count)
            elif value is not None:
                self.counts.setdefault(key, value)

    def add_details(self, side: str, value: Any) -> None:
        """Add the parts of a side."""
        for key, part in value.items() if isinstance(value, dict) else ():
            count = read_count(part)
            if count is not None:
                self.details[side].setdefault(key, count)

    def add_raw(self, document: Mapping[str, Any]) -> None:
        """Add the parts that a provider reported."""
        for path, value in _list_leaves(document):
            side, key = _find_target(path) or (None, "")
            if side is not None:
                self.add_details(side, {key: value})

    def add_attribute(self, name: str, words: str, value: Any) -> None:
        """Add one attribute, unless it is something else than a count."""
        target = _find_target(words)
        count = read_count(value)
        if target is None or count is None:
            return

        self.names.add(name)
        side, key = target
        if side is None:
            self.counts.setdefault(key, count)
        else:
            self.details[side][key] = max(count, self.details[side].get(key, 0))


def reread_extra(extra: str) -> str | None:
    """Return the `extra` of a stored run with the counts that its metadata has under the names of attributes.

    Servers of before read fewer names, and left the others in the metadata. None if that changes nothing.
    """
    document = decode_object(extra)
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return None

    stored_usage = metadata.get(_USAGE)
    usage, names = read_usage(metadata, stored_usage=decode_object(stored_usage))
    if not names or not usage or usage == stored_usage:
        return None

    return dump_user({**document, "metadata": {**metadata, _USAGE: usage}}).decode()


def read_count(value: Any) -> int | None:
    """Return a number of tokens, which may be text; None for anything that is not one."""
    if isinstance(value, str):
        if _NUMBER.fullmatch(value) is None:
            return None
        value = float(value)

    if isinstance(value, bool) or not isinstance(value, int | float):
        return None

    # Instrumentations report counts as doubles too, and NaN for an unknown one.
    if not math.isfinite(value) or not 0 <= value <= _MAX_COUNT:
        return None

    return int(value)


def _list_leaves(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a provider's own usage, with the names that lead to them."""
    for name, value in document.items():
        if isinstance(value, dict) and path.count(".") < _MAX_RAW_DEPTH:
            yield from _list_leaves(value, f"{path}{name}.")
        else:
            yield path + name, value


def _find_whole_usages(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the attributes that hold a whole usage: as JSON, as an object, or one attribute for each count."""
    for name in _WHOLE:
        whole = decode_text(attributes.get(name))
        if isinstance(whole, dict):
            yield name, whole

        prefix = f"{name}."
        parts = {key.removeprefix(prefix): attributes[key] for key in attributes if key.startswith(prefix)}
        if parts:
            whole = nest(parts)
            yield from ((prefix + key, whole) for key in parts)


def _read_details(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if not isinstance(value, str) or len(value) > _MAX_DETAILS_CHARS:
        return {}

    return {match[1]: float(match[2]) for match in _ENTRY.finditer(value)}


def _find_target(name: str) -> tuple[str | None, str] | None:  # noqa: PLR0911 - one return for each kind of count
    """Return the group and the key of a count by the words of its name; None for something else."""
    words = {word.lower() for word in _WORD.findall(name)}
    if words & _OTHER_WORDS:
        return None

    if lifetimes := words & {"1h", "5m"}:
        is_of_cache = words & (_CACHE_WORDS | {"ephemeral"})
        return (INPUT_DETAILS, f"ephemeral_{min(lifetimes)}_input_tokens") if is_of_cache else None

    sides = {_SIDES[word] for word in words if word in _SIDES}
    if words & _CACHE_WORDS:
        # Cached audio is a part of both, and has no price of its own.
        if "audio" in words or OUTPUT in sides:
            return None
        return INPUT_DETAILS, "cache_creation" if words & _WRITE_WORDS else "cache_read"

    if words & _REASONING_WORDS:
        return (OUTPUT_DETAILS, "reasoning") if INPUT not in sides else None

    if "audio" in words:
        if sides == {INPUT}:
            return INPUT_DETAILS, "audio"
        return (OUTPUT_DETAILS, "audio") if sides == {OUTPUT} else None

    others = words - _SIDES.keys() - _PLAIN_WORDS
    if len(sides) == 1 and not others:
        return None, sides.pop()

    # Vercel's embeddings have `ai.usage.tokens` alone.
    return (None, INPUT) if words == {"tokens"} else None


def _complete(counts: dict[str, Any], details: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Add what follows from the counts: a total, and input tokens that were reported without those of the cache."""
    input_count = counts.get(INPUT)
    output_count = counts.get(OUTPUT)
    total = counts.get(TOTAL)
    inputs = details[INPUT_DETAILS]
    ephemeral_count = sum(count for key, count in inputs.items() if key.startswith("ephemeral_"))
    cached_count = inputs.get("cache_read", 0) + max(inputs.get("cache_creation", 0), ephemeral_count)

    if input_count is None and total is not None and output_count is not None and total >= output_count:
        input_count = total - output_count
    elif cached_count and cached_count > (input_count or 0):
        # A part cannot be more than the whole, so the whole does not include it.
        if total == (input_count or 0) + (output_count or 0):
            total = None

        input_count = (input_count or 0) + cached_count
    elif cached_count and input_count is not None and total == input_count + (output_count or 0) + cached_count:
        input_count += cached_count

    if input_count is not None:
        counts[INPUT] = input_count

    if total is None and (input_count is not None or output_count is not None):
        counts[TOTAL] = (input_count or 0) + (output_count or 0)

    return counts | {group: parts for group, parts in details.items() if parts}
