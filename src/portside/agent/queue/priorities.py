"""Priority: which runs go first when more wait than there are slots.

An assistant says it in its metadata, `run_priority`, from -5 (first) to 5 (last). A step moves a run's turn by a
minute: one of -5 is claimed as if it had been asked for five minutes earlier. So a run overtakes those that came a
little before it, and none waits for ever behind others that keep coming. Runs of one thread stay in their order.
"""

from typing import Any

from portside.kernel.errors import Invalid

FIELD = "run_priority"
FIRST, LAST = -5, 5


def priority_of(metadata: dict[str, Any]) -> int:
    """Return what an assistant's metadata says of its runs' priority, 0 where nothing. Raises Invalid for nonsense."""
    given = metadata.get(FIELD)
    if given is None:
        return 0
    if isinstance(given, bool) or not isinstance(given, int) or not FIRST <= given <= LAST:
        loc = ["body", "metadata", FIELD]
        raise Invalid.field(loc, f"Expected an integer from {FIRST} (first) to {LAST} (last)")
    return given
