"""Interrupts of langgraph before 0.6 reach clients with the id that newer ones have, wherever a stream shows them."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from langgraph.types import Interrupt

from portside.executor import interrupts
from portside.executor.interrupts import add_id, add_ids, get_interrupt_id


@dataclass
class OlderInterrupt:
    """The fields of the class before langgraph 0.6."""

    value: Any
    resumable: bool = False
    ns: tuple[str, ...] | None = None
    when: str = "during"

    @property
    def interrupt_id(self) -> str:
        return hashlib.sha256("|".join(self.ns or ()).encode()).hexdigest()


OLDER = OlderInterrupt("go on?", resumable=True, ns=("ask:1",))
SHOWN = {"value": "go on?", "id": OLDER.interrupt_id}


def test_interrupts_of_newer_versions_stay() -> None:
    newer = Interrupt(value="go on?", id="1")
    assert (get_interrupt_id(newer), add_id(newer)) == ("1", newer)
    assert add_ids("updates", {"__interrupt__": (newer,)}) == {"__interrupt__": (newer,)}


def test_interrupts_of_older_versions_get_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "Interrupt", OlderInterrupt)
    task = {"id": "1", "interrupts": [asdict(OLDER)]}
    shown = {"id": "1", "interrupts": [SHOWN]}
    assert (get_interrupt_id(OLDER), add_id(OLDER)) == (OLDER.interrupt_id, SHOWN)

    for mode, payload, expected in (
        ("updates", {"__interrupt__": (OLDER,)}, {"__interrupt__": (SHOWN,)}),
        ("values", {"a": 1, "__interrupt__": (OLDER,)}, {"a": 1, "__interrupt__": (SHOWN,)}),
        ("debug", {"type": "task_result", "payload": task}, {"type": "task_result", "payload": shown}),
        (
            "debug",
            {"type": "checkpoint", "payload": {"tasks": [task]}},
            {"type": "checkpoint", "payload": {"tasks": [shown]}},
        ),
        ("values", [1], [1]),
    ):
        assert add_ids(mode, payload) == expected
