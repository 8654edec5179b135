"""Compares what two servers said, step by step, and tells explained differences from unexplained ones.

The table of explanations is `explained.toml`. A difference is explained when an entry names its step and its path, and
(where the entry gives them) the two values. Entries of the kind `open` are differences that are to go away.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

EXPLAINED = Path(__file__).parent / "explained.toml"
ABSENT = "(absent)"
OPEN = "open"


@dataclass(frozen=True, eq=False)
class Difference:
    """One place where two answers are not alike."""

    step: str
    path: str
    reference: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.step}  {self.path}: reference {_short(self.reference)}, ours {_short(self.ours)}"


@dataclass
class Explanation:
    """An entry of the table, and how often it was needed."""

    steps: list[str]
    paths: list[str]
    why: str
    kind: str
    reference: Any = None
    ours: Any = None
    used: int = 0

    def covers(self, difference: Difference) -> bool:
        return (
            any(fnmatchcase(difference.step, pattern) for pattern in self.steps)
            and any(fnmatchcase(difference.path, pattern) for pattern in self.paths)
            and (self.reference is None or difference.reference == self.reference)
            and (self.ours is None or difference.ours == self.ours)
        )


@dataclass
class Verdict:
    """What came out of a comparison."""

    same: int = 0
    explained: int = 0
    open: int = 0
    unexplained: dict[str, list[Difference]] = field(default_factory=dict)
    by_script: dict[str, list[int]] = field(default_factory=dict)
    table: list[Explanation] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"{self.same} the same, {self.explained} explained, {self.open} open"
        return f"{counts}, {len(self.unexplained)} unexplained"


def explanations() -> list[Explanation]:
    """The table as it is checked in."""
    entries = tomllib.loads(EXPLAINED.read_text("utf-8"))["explained"]
    return [
        Explanation(**{**entry, "steps": _list(entry["steps"]), "paths": _list(entry["paths"])}) for entry in entries
    ]


def compare(reference: dict[str, Any], ours: dict[str, Any]) -> Verdict:
    """Compare two records of the same scripts."""
    verdict = Verdict(table=explanations())
    for script, scenes in reference.items():
        counts = verdict.by_script.setdefault(script, [0, 0, 0, 0])
        for scene, steps in scenes.items():
            said = ours.get(script, {}).get(scene, {})
            for step in {**steps, **said}:
                name = f"{script}.{scene}.{step}"
                counts[_judge(verdict, name, list(_step(name, steps.get(step), said.get(step))))] += 1

    return verdict


def _judge(verdict: Verdict, name: str, differences: list[Difference]) -> int:
    """Count a step; the column of the script's counts that it belongs to."""
    covering = {difference: _entry(verdict.table, difference) for difference in differences}
    if missing := [difference for difference, entry in covering.items() if entry is None]:
        verdict.unexplained[name] = missing
        return 3

    if any(entry and entry.kind == OPEN for entry in covering.values()):
        verdict.open += 1
        return 2

    verdict.explained += bool(differences)
    verdict.same += not differences
    return 1 if differences else 0


def _entry(table: list[Explanation], difference: Difference) -> Explanation | None:
    found = next((entry for entry in table if entry.covers(difference)), None)
    if found:
        found.used += 1

    return found


def _step(name: str, reference: Any, ours: Any) -> Iterator[Difference]:
    if reference is None or ours is None:
        yield Difference(name, "", _brief(reference), _brief(ours))
    elif reference["status"] != ours["status"]:
        yield Difference(name, "status", reference["status"], ours["status"])
    elif "events" in reference and "events" in ours:
        yield from _values(name, "headers", reference["headers"], ours["headers"])
        yield from _events(name, reference["events"], ours["events"])
    else:
        yield from _values(name, "", reference, ours)


def _events(name: str, reference: list[Any], ours: list[Any]) -> Iterator[Difference]:
    names = [event["event"] for event in reference], [event["event"] for event in ours]
    if names[0] != names[1]:
        yield Difference(name, "events", *names)
        return

    for number, (left, right) in enumerate(zip(reference, ours, strict=True)):
        yield from _values(name, f"events.{number}.{left['event']}", left, right)


def _values(name: str, path: str, reference: Any, ours: Any) -> Iterator[Difference]:
    if isinstance(reference, dict) and isinstance(ours, dict):
        for key in {**reference, **ours}:
            below = f"{path}.{key}" if path else str(key)
            yield from _values(name, below, reference.get(key, ABSENT), ours.get(key, ABSENT))
    elif isinstance(reference, list) and isinstance(ours, list) and len(reference) == len(ours):
        for number, (left, right) in enumerate(zip(reference, ours, strict=True)):
            yield from _values(name, f"{path}.{number}", left, right)
    elif reference != ours or isinstance(reference, bool) != isinstance(ours, bool):
        yield Difference(name, path, reference, ours)


def _brief(step: Any) -> Any:
    return ABSENT if step is None else step.get("body", step["status"])


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
