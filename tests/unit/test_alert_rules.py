"""When an alert begins and ends: after how long, how far from its threshold, and when its subject is gone."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from portside.alerts.alerts import State, next_step
from portside.alerts.rules import ENDS_AFTER_S, RULES, Rule

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
RULE = Rule("queue", "", "s", threshold=100, for_s=60, ends_at=0.8)
DAYS = Rule("certificate", "", "days", threshold=14, ends_at=1.5, is_below=True)


def after(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def walk(rule: Rule, values: list[tuple[float, float | None]]) -> list[str]:
    """Judge values at times, as the watch does, and return the steps."""
    state = None
    steps = []
    for seconds, value in values:
        step = next_step(rule, state, value, after(seconds))
        steps.append(step)

        if step in {"none", "forgotten", "ended"}:
            state = None
            continue

        state = state or State(after(seconds))
        changed = {"fired_at": state.fired_at or (after(seconds) if step == "firing" else None)}
        changed["recovering_since"] = (state.recovering_since or after(seconds)) if step == "recovering" else None
        state = msgspec.structs.replace(state, **changed)

    return steps


def test_a_condition_fires_after_it_has_held_for_a_while() -> None:
    assert walk(RULE, [(0, 99), (15, 100), (30, 500), (74, 100), (75, 100)]) == ["none", *["pending"] * 3, "firing"]
    assert walk(RULE, [(0, 100), (30, 99), (45, 100), (100, 100)]) == ["pending", "forgotten", "pending", "pending"]
    assert walk(DAYS, [(0, 14.1), (1, 14)]) == ["none", "firing"]


def test_an_alert_ends_only_well_below_its_threshold_and_after_a_while() -> None:
    fired = [(0, 100), (60, 100)]
    assert walk(RULE, [*fired, (75, 81), (90, 80)])[2:] == ["firing", "firing"]
    wavering = [(75, 10), (90, 90), (105, 10), (105 + ENDS_AFTER_S - 1, 10), (105 + ENDS_AFTER_S, 10)]
    assert walk(RULE, [*fired, *wavering])[2:] == ["recovering", "firing", "recovering", "recovering", "ended"]
    assert walk(DAYS, [(0, 3), (1, 20), (2, 90), (2 + ENDS_AFTER_S, 90)]) == ["firing", "firing", "recovering", "ended"]


def test_an_alert_ends_with_its_subject_and_its_rule() -> None:
    assert walk(RULE, [(0, None), (0, 100), (1, None)]) == ["none", "pending", "forgotten"]
    assert walk(RULE, [(0, 100), (60, 100), (61, None)]) == ["pending", "firing", "ended"]
    assert next_step(None, State(BEGAN, BEGAN), 100, after(1)) == "ended"
    assert next_step(None, None, 100, after(1)) == "none"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_can_fire_and_end(rule: Rule) -> None:
    assert rule.is_met(rule.threshold)
    assert not rule.is_over(rule.threshold)
    far = rule.threshold * 10 if rule.is_below else 0.0
    assert rule.is_over(far)
    assert not rule.is_met(far)
