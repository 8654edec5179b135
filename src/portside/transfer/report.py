"""What was carried: counts for each kind, and the items that were not carried, or not as they were, with the reason."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from portside.kernel.errors import UserMistake
from portside.transfer.server import MAX_REASON, RequestRefused, UnexpectedAnswer

# What a malformed item leads to, and refusals of either server. Anything else ends the import.
_OF_ONE_ITEM = (RequestRefused, UnexpectedAnswer, KeyError, TypeError, ValueError, AttributeError, RecursionError)
MAX_ITEMS = 10_000
PROGRESS_S = 5.0


@dataclass(slots=True)
class Counts:
    """The items of one kind."""

    carried: int = 0
    present: int = 0
    """At the target already, for example from an import before this one."""
    failed: int = 0

    def describe(self) -> str:
        """Return the counts as words."""
        words = [f"{self.carried} carried"]
        if self.present:
            words.append(f"{self.present} there already")
        if self.failed:
            words.append(f"{self.failed} not carried")

        return ", ".join(words)


@dataclass(slots=True)
class Report:
    """The result of an import so far; `say` prints a line of progress."""

    say: Callable[[str], None]
    counts: dict[str, Counts] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    left_out: int = 0
    """Failures and notes beyond those that are kept."""
    is_complete: bool = False
    _said_at: float = 0.0

    @property
    def has_failures(self) -> bool:
        """Whether an item was not carried."""
        return any(counts.failed for counts in self.counts.values())

    def of(self, kind: str) -> Counts:
        """Return the counts of a kind."""
        return self.counts.setdefault(kind, Counts())

    def carry(self, kind: str, count: int = 1) -> None:
        """Note that items were carried."""
        self.of(kind).carried += count
        self._show_progress(kind)

    def find(self, kind: str, count: int = 1) -> None:
        """Note that items are at the target already."""
        self.of(kind).present += count
        self._show_progress(kind)

    def fail(self, kind: str, name: str, reason: object) -> None:
        """Note that an item could not be carried."""
        self.of(kind).failed += 1
        self._keep(self.failures, kind, name, reason)

    def note(self, kind: str, name: str, reason: object) -> None:
        """Note that an item was carried, but not wholly as it was."""
        self._keep(self.notes, kind, name, reason)

    @contextmanager
    def item(self, kind: str, name: object) -> Iterator[None]:
        """Count an item as failed if the block raises what concerns it alone."""
        try:
            yield
        except UserMistake:
            raise
        except _OF_ONE_ITEM as exc:
            reason = f"its {exc} is missing" if isinstance(exc, KeyError) else str(exc) or type(exc).__name__
            self.fail(kind, str(name), reason)

    def to_document(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return {
            "is_complete": self.is_complete,
            "counts": {
                kind: {"carried": counts.carried, "present": counts.present, "failed": counts.failed}
                for kind, counts in self.counts.items()
            },
            "not_carried": self.failures,
            "carried_with_changes": self.notes,
            "left_out_of_this_report": self.left_out,
        }

    def _keep(self, entries: list[dict[str, str]], kind: str, name: str, reason: object) -> None:
        if len(entries) >= MAX_ITEMS:
            self.left_out += 1
            return

        entries.append({"kind": kind, "item": name[:MAX_REASON], "reason": str(reason)[:MAX_REASON]})

    def _show_progress(self, kind: str) -> None:
        if time.monotonic() - self._said_at >= PROGRESS_S:
            self._said_at = time.monotonic()
            self.say(f"{kind}: {self.of(kind).describe()}")
