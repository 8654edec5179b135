"""The priorities that assistants give their runs."""

from typing import Any

from portside.kernel.errors import Invalid

PRIORITY_FIELD = "run_priority"
HIGHEST_PRIORITY = -5
LOWEST_PRIORITY = 5


def parse_priority(metadata: dict[str, Any]) -> int:
    """Return the priority that an assistant's metadata gives its runs; 0 without one. Raises Invalid.

    A priority from -5 (first) to 5 (last) moves the queue position of a run by as many minutes: a run of -5 is claimed
    as if it had been requested five minutes earlier. So a run overtakes those that came a little before it, and none
    waits for ever behind others that keep coming. Runs of one thread stay in their order.
    """
    priority = metadata.get(PRIORITY_FIELD)
    if priority is None:
        return 0

    is_integer = isinstance(priority, int) and not isinstance(priority, bool)
    if is_integer and HIGHEST_PRIORITY <= priority <= LOWEST_PRIORITY:
        return int(priority)

    raise Invalid.field(
        ["body", "metadata", PRIORITY_FIELD],
        f"Expected an integer from {HIGHEST_PRIORITY} (first) to {LOWEST_PRIORITY} (last)",
    )
