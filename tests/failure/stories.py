"""The story that a stream of a ledger's run tells: what was begun and ended in which attempt, without a gap."""

from collections.abc import Iterator
from typing import Any, NamedTuple


class Told(NamedTuple):
    """A step that was begun or ended in an attempt; `metadata` begins an attempt."""

    what: str
    attempt: int
    step: int


def wrong_story(events: list[tuple[str, Any]], steps: int | None) -> list[str]:
    """Return what is missing or too much; `steps` is how many a run ended that ended well and was heard to its end.

    A step that was cut off is told again by the next attempt, which begins at most one step after the last that ended.
    """
    wrong = [f"an error: {data}" for name, data in events if name == "error"]
    attempt, ended = 0, -1
    under_way: int | None = None
    is_first = True
    for one in told_by(events):
        if one.what == "metadata":
            if one.attempt <= attempt:
                wrong.append(f"attempt {one.attempt} after {attempt}")
            attempt, under_way, is_first = one.attempt, None, True
        elif one.attempt != attempt:
            wrong.append(f"{one} in attempt {attempt}")
        elif one.what == "begin":
            if under_way is not None or one.step not in ({ended, ended + 1} if is_first else {ended + 1}):
                wrong.append(f"{one} after the end of {ended}, with {under_way} under way")
            under_way, is_first = one.step, False
        else:
            if one.step != under_way:
                wrong.append(f"{one} with {under_way} under way")
            under_way, ended = None, one.step
    if steps is not None and ended != steps - 1:
        wrong.append(f"{ended + 1} of {steps} steps")
    return wrong


def told_by(events: list[tuple[str, Any]]) -> Iterator[Told]:
    """Yield what a run's events tell of attempts and steps."""
    for name, data in events:
        if not isinstance(data, dict):
            continue
        if name == "metadata":
            yield Told("metadata", data.get("attempt", 1), -1)
        elif name == "custom":
            what = "begin" if "begin" in data else "end"
            yield Told(what, data["attempt"], data[what])
