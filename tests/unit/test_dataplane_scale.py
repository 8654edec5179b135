"""How many replicas there are: by what the contract, the revision and the owner say, and by load."""

import os
from typing import Any
from uuid import UUID

import pytest

from portside.dataplane.compute.limits import cores_for
from portside.dataplane.compute.scale import Bounds, Load, Scaler, needed, scale_of
from portside.dataplane.types import DesiredDeployment, DesiredRevision, ScaleBounds

ONE = UUID(int=1)
SPEC = {"min_scale": 1, "max_scale": 1, "queue_min_scale": 1, "queue_max_scale": 1}


@pytest.mark.parametrize(
    ("said", "spec", "scale"),
    [
        ({}, SPEC, {"all": (1, 1)}),
        ({}, {}, {"all": (1, 1)}),
        ({}, {**SPEC, "max_scale": 10, "queue_max_scale": 10}, {"api": (1, 10), "queue": (1, 10)}),
        ({"max_scale": 1}, {**SPEC, "max_scale": 10, "queue_max_scale": 10}, {"all": (1, 1)}),
        ({"max_scale": 3}, SPEC, {"api": (1, 3), "queue": (1, 3)}),
        ({"queue_max_scale": 4}, SPEC, {"api": (1, 1), "queue": (1, 4)}),
        ({"min_scale": 2}, SPEC, {"api": (2, 2), "queue": (2, 2)}),
        ({}, {**SPEC, "min_scale": 2, "max_scale": 5}, {"api": (2, 5), "queue": (1, 1)}),
        ({"queue_min_scale": 3}, {**SPEC, "max_scale": 5}, {"api": (1, 5), "queue": (3, 3)}),
    ],
)
def test_the_owner_wins_over_the_revision(
    said: dict[str, int], spec: dict[str, Any], scale: dict[str, tuple[int, int]]
):
    deployment = DesiredDeployment(id=ONE, name="x", status="READY", scale=ScaleBounds(**said))
    revision = DesiredRevision(id=ONE, number=1, status="DEPLOYED", resource_spec=spec)
    assert scale_of(deployment, revision) == {tier: Bounds(*bounds) for tier, bounds in scale.items()}


@pytest.mark.parametrize(
    ("replicas", "cpu", "pending", "number"),
    [(1, None, None, 0), (1, 0.0, 10, 1), (1, 0.0, 11, 2), (2, 0.75, 0, 2), (2, 0.9, 0, 3), (4, 0.1, 95, 10)],
)
def test_ten_waiting_runs_or_three_quarters_of_a_cpu_are_a_replica(
    replicas: int, cpu: float | None, pending: int | None, number: int
):
    assert needed(Load(replicas, cpu, pending)) == number


def test_there_are_more_at_once_and_fewer_only_after_a_while():
    scaler = Scaler(Bounds(1, 5), down_after_s=60)
    pending = [(0, 0, 1), (1, 35, 4), (2, 999, 5), (30, 0, 5), (61, 0, 5), (62, 11, 5), (63, 0, 2), (123, 0, 1)]
    for moment, runs, number in pending:
        assert scaler.decide(Load(1, None, runs), now=moment) == number, moment
    scaler.bounds = Bounds(3, 5)
    assert scaler.decide(Load(1, None, 0), now=124) == 3


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system confines no process to cores")
def test_a_limit_is_whole_cores_and_none_where_the_machine_has_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 4, 5})
    assert cores_for(UUID(int=3), 1.5) == {5, 0}
    assert cores_for(UUID(int=1), 3) == {1, 4, 5}
    assert cores_for(ONE, 4) == cores_for(ONE, None) == frozenset()
