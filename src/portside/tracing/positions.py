"""Where a run stands: its trace, its parent, and its dotted order, which names all runs from the root to the run.

The three must agree. Clients sort by the dotted order and read ids from it, and one run that contradicts itself would
make a list of runs unreadable.
"""

import re
from uuid import UUID

from portside.kernel.errors import Invalid
from portside.tracing.types import RunWrite

MAX_DOTTED_ORDER_CHARS = 20_000
_ID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_PART = rf"\d{{8}}T\d{{6,18}}Z{_ID}"
_DOTTED_ORDER = re.compile(rf"{_PART}(?:\.{_PART})*", re.ASCII)
_CAPITAL_ID = re.compile(rf"(?<=Z){_ID}", re.ASCII)
_ID_CHARS = 36


def check_position(write: RunWrite) -> None:
    """Take the trace and the parent from the dotted order where they were not sent. Raises Invalid if they disagree."""
    order = write.dotted_order
    if order is None:
        return

    def refuse(problem: str) -> Invalid:
        return Invalid.field(["body", str(write.id), "dotted_order"], f"{problem}; correct it, or leave it out")

    if len(order) > MAX_DOTTED_ORDER_CHARS:
        raise refuse(f"is longer than {MAX_DOTTED_ORDER_CHARS} characters")

    if _DOTTED_ORDER.fullmatch(order) is None:
        example = "20261121T020440002605Z01a1fbd9-3ac2-7000-8000-000000000001"
        raise refuse(
            f"must be the start and the id of each run from the root to this one, such as {example}, with dots"
        )

    if any(letter in order for letter in "ABCDEF"):
        order = write.dotted_order = _CAPITAL_ID.sub(lambda match: match[0].lower(), order)

    first, parent, last = read_ids(order)
    if last != write.id:
        raise refuse("must end with the id of this run")
    if parent == last:
        raise refuse("must not name this run as its own parent")
    if write.trace_id not in {None, first}:
        raise refuse("must begin with the id of the trace, which is the one of its root")

    if write.parent_run_id not in {None, parent}:
        raise refuse("must name the parent before this run")

    write.trace_id = first
    write.parent_run_id = parent


def read_ids(order: str) -> tuple[UUID, UUID | None, UUID]:
    """Return the ids of the root, the parent and the run that a dotted order names. It must have its form."""
    parts = order.split(".")
    parent = UUID(parts[-2][-_ID_CHARS:]) if len(parts) > 1 else None
    return UUID(parts[0][-_ID_CHARS:]), parent, UUID(parts[-1][-_ID_CHARS:])


def read_ancestors(order: str) -> list[str]:
    """Return the ids of the runs above a run, from the root on; none if the dotted order is malformed."""
    if "." not in order or _DOTTED_ORDER.fullmatch(order) is None:
        return []
    return [part[-_ID_CHARS:] for part in order.split(".")[:-1]]
