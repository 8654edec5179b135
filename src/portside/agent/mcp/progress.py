"""How far a call is, by the events of its run.

Each step that ends is one more. A graph that knows better writes it to its stream: a writer's
`{"progress": 30, "total": 100, "message": "…"}` is passed on as it is, and from then on steps are no longer counted.
Progress only grows.
"""

import math
from collections.abc import Iterator
from typing import Any

from portside.kernel.codec import load

MODES = ["updates", "custom"]
LONGEST = 1000


class Progress:
    """The progress of one call."""

    def __init__(self) -> None:
        self._reached = -math.inf
        self._is_told_by_graph = False

    def read(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Yield what the events of a chunk tell."""
        for frame in chunk.split(b"\r\n\r\n"):
            head, _, rest = frame.partition(b"\r\n")
            name, data = head.removeprefix(b"event: "), rest.partition(b"\r\n")[0].removeprefix(b"data: ")
            told = self._step(data) if name == b"updates" else self._said(data) if name == b"custom" else None
            if told is not None:
                self._reached = told["progress"]
                yield told

    def _step(self, data: bytes) -> dict[str, Any] | None:
        nodes = load(data)
        if self._is_told_by_graph or not isinstance(nodes, dict):
            return None
        return {"progress": max(self._reached, 0) + 1, "message": f"Done: {', '.join(map(str, nodes))}"[:LONGEST]}

    def _said(self, data: bytes) -> dict[str, Any] | None:
        said = load(data)
        if not isinstance(said, dict) or not _is_number(said.get("progress")) or said["progress"] <= self._reached:
            return None
        self._is_told_by_graph = True
        told = {"progress": said["progress"]}
        if _is_number(said.get("total")):
            told["total"] = said["total"]
        if isinstance(said.get("message"), str):
            told["message"] = said["message"][:LONGEST]
        return told


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
