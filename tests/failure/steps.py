"""The steps that a stream of a ledger's run must report: begun and ended in which attempt, without a gap."""

from collections.abc import Iterator
from typing import Any, NamedTuple


class StepEvent(NamedTuple):
    """The begin or the end of a step in an attempt; `metadata` begins an attempt."""

    kind: str
    attempt: int
    step: int


def violations_in_steps(events: list[tuple[str, Any]], steps: int | None) -> list[str]:
    """Return what is missing or superfluous; `steps` is the number of steps of a successful run, if it was read whole.

    The next attempt repeats an interrupted step: it begins at most one step after the last one that ended.
    """
    found = [f"an error: {data}" for name, data in events if name == "error"]
    attempt = 0

    ended = -1
    current: int | None = None
    is_first = True
    for event in step_events(events):
        if event.kind == "metadata":
            if event.attempt <= attempt:
                found.append(f"attempt {event.attempt} after {attempt}")

            attempt = event.attempt
            current = None
            is_first = True
        elif event.attempt != attempt:
            found.append(f"{event} in attempt {attempt}")
        elif event.kind == "begin":
            if current is not None or event.step not in ({ended, ended + 1} if is_first else {ended + 1}):
                found.append(f"{event} after the end of step {ended}, during step {current}")

            current = event.step
            is_first = False
        else:
            if event.step != current:
                found.append(f"{event} during step {current}")

            current = None
            ended = event.step

    if steps is not None and ended != steps - 1:
        found.append(f"{ended + 1} of {steps} steps")

    return found


def step_events(events: list[tuple[str, Any]]) -> Iterator[StepEvent]:
    """Yield the begins and ends of attempts and steps in a run's events."""
    for name, data in events:
        if not isinstance(data, dict):
            continue

        if name == "metadata":
            yield StepEvent("metadata", data.get("attempt", 1), -1)
        elif name == "custom":
            kind = "begin" if "begin" in data else "end"
            yield StepEvent(kind, data["attempt"], data[kind])
