"""Merges the writes of one batch for the same run.

Requests may arrive twice and in any order, so order and repetition must not matter: where a run stands (trace, parent,
project) is set once and never moves; for every other field null never wins, a patch outweighs a post, and of two
patches the one with the later end time wins. `merge_runs` applies the same rule in SQL to stored runs, because one
statement cannot touch a row twice; tests/db/test_tracing_ingest.py holds the two rules equal, and docs/why/traces.md
says why both exist.
"""

from collections.abc import Iterable
from operator import attrgetter
from uuid import UUID

from portside.tracing.types import RunWrite

# Set once: a run never moves.
POSITION_FIELDS = ("trace_id", "parent_run_id", "dotted_order", "project_id", "session_name", "reference_example_id")
MERGED_FIELDS = (
    "name",
    "run_type",
    "start_time",
    "end_time",
    "tags",
    "error",
    "inputs",
    "outputs",
    "extra",
    "events",
    "serialized",
)
# The bit of each field in `patched`; `merge_runs` has the same numbers.
PATCH_BITS = tuple((1 << index, name) for index, name in enumerate(MERGED_FIELDS))
_get_integer = attrgetter("int")


def merge_repeated(writes: Iterable[RunWrite]) -> list[RunWrite]:
    """Return one write per run, sorted by id, so that concurrent batches lock rows in the same order."""
    runs: dict[UUID, RunWrite] = {}
    for write in writes:
        first = runs.setdefault(write.id, write)
        if first is not write:
            _merge_into(first, write)

    # Sorted by their integers, because UUIDs compare themselves in Python code.
    return [runs[run_id] for run_id in sorted(runs, key=_get_integer)]


def _merge_into(target: RunWrite, later: RunWrite) -> None:
    """Merge a later write of the same run into the first one, by the rule of this module."""
    for name in POSITION_FIELDS:
        if getattr(target, name) is None:
            setattr(target, name, getattr(later, name))

    for bit, name in PATCH_BITS:
        value = getattr(later, name)
        if value is None:
            continue

        target_rank = (target.patched & bit, target.patch_order)
        later_rank = (later.patched & bit, later.patch_order)
        if getattr(target, name) is None or later_rank >= target_rank:
            setattr(target, name, value)

    target.patched |= later.patched
    target.patch_order = max(target.patch_order, later.patch_order)
    target.is_post |= later.is_post
    target.is_awaited |= later.is_awaited
