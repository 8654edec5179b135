"""Lays together what several writes say about one run, by the rule that makes order and repetition harmless.

Where a run stands (trace, parent, project) is said once and never moves. For every other field null never wins, a patch
outweighs a post, and of two patches the one with the later end time does. `merge_runs` applies the same rule in SQL to
what is stored already; tests/db/test_tracing_ingest.py holds the two together.
"""

from collections.abc import Iterable
from operator import attrgetter
from uuid import UUID

from portside.tracing.types import RunWrite

PLACE = ("trace_id", "parent_run_id", "dotted_order", "project_id", "session_name", "reference_example_id")
SETTLED = (
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
BITS = tuple((1 << index, name) for index, name in enumerate(SETTLED))


_number = attrgetter("int")


def weigh(patch: RunWrite) -> None:
    """Mark what a patch says, and how late."""
    patch.patched = sum(bit for bit, name in BITS if getattr(patch, name) is not None)
    patch.patch_order = patch.end_time.timestamp() if patch.end_time else 0.0


def fold(writes: Iterable[RunWrite]) -> list[RunWrite]:
    """Return one write per run, sorted by id."""
    runs: dict[UUID, RunWrite] = {}
    for write in writes:
        kept = runs.setdefault(write.id, write)
        if kept is not write:
            _lay_over(kept, write)
    # By their numbers: ids compare themselves in Python.
    return [runs[run_id] for run_id in sorted(runs, key=_number)]


def _lay_over(kept: RunWrite, came: RunWrite) -> None:
    for name in PLACE:
        if getattr(kept, name) is None:
            setattr(kept, name, getattr(came, name))
    for bit, name in BITS:
        value = getattr(came, name)
        if value is None:
            continue
        keeps = (kept.patched & bit, kept.patch_order) > (came.patched & bit, came.patch_order)
        if getattr(kept, name) is None or not keeps:
            setattr(kept, name, value)
    kept.patched |= came.patched
    kept.patch_order = max(kept.patch_order, came.patch_order)
    kept.is_post |= came.is_post
    kept.is_awaited |= came.is_awaited
