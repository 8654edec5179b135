"""Takes out of an answer what two servers cannot have in common: ids, times, versions, addresses.

An id becomes a name that says under which key it was first seen and in which step, so that two answers with the same
names refer to the same things. Whatever else is compared is left as it is.
"""

import re
import uuid
from collections import Counter
from typing import Any

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
HEX_ID = re.compile(r"\b[0-9a-f]{32}\b")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
VERSION = re.compile(r"\d+\.\d+\.\d+\S*")
ORIGIN = re.compile(r"http://127\.0\.0\.1:\d+")
EVENT_ID = re.compile(r"\b\d{13}-\d+(\.\d+)?\b")
RESOURCES = frozenset({"thread_id", "run_id", "assistant_id", "checkpoint_id"})
SIZES = frozenset({"bytes", "total_bytes"})
MILLISECONDS = 10**12
PARENTS = {"parent_checkpoint_id": "checkpoint_id", "langgraph_request_id": "request_id", "parent_ids": "run_id"}


class Names:
    """The names of the ids that one scene has met on one server."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.step = ""
        self.counts: Counter[str] = Counter()

    def begin(self, step: str) -> None:
        """Name the ids first seen from now on after this step."""
        self.step = step
        self.counts = Counter()

    def of(self, found: str, key: str) -> str:
        if found not in self.known:
            key = PARENTS.get(key, key)
            kind = f" v{uuid.UUID(found).version}" if key in RESOURCES else ""
            self.known[found] = f"<{key}{kind} {self.step}.{self.counts[key]}>"
            self.counts[key] += 1

        return self.known[found]

    def replace(self, text: str, key: str) -> str:
        """Name every id in a text, and blank its times, versions and addresses."""
        text = UUID.sub(lambda match: self.of(match.group().lower(), key), ORIGIN.sub("<origin>", text))
        text = HEX_ID.sub(lambda match: self.of(match.group(), key), text)
        text = EVENT_ID.sub("<event id>", TIME.sub(_time, text))
        return "<version>" if VERSION.fullmatch(text) else text


def _time(match: re.Match[str]) -> str:
    """Times of the documented form are all the same; any other form shows."""
    fraction, zone = match.groups()
    # A time at a whole second has no fraction.
    usual = (fraction is None or len(fraction) == 7) and zone == "+00:00"
    return "<time>" if usual else f"<time of the form {re.sub('[0-9]', '0', match.group())}>"


def normalise(value: Any, names: Names, key: str = "id") -> Any:
    """What of a decoded answer can be compared."""
    if isinstance(value, dict):
        return {
            names.replace(name, "key"): normalise(item, names, name if isinstance(name, str) else "id")
            for name, item in sorted(value.items())
        }

    if isinstance(value, list):
        return [normalise(item, names, key) for item in value]
    if isinstance(value, str):
        return names.replace(value, key)

    return _number(value, key) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _number(value: float, key: str) -> object:
    if key in SIZES:
        return "<size>"
    if value > MILLISECONDS:
        return "<ms>"

    return round(value, 6) if isinstance(value, float) else value
