"""The number of replicas by bounds and load, CPU limits, and the usage of process groups."""

import asyncio
import os
import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from portside.dataplane.compute import resource_usage
from portside.dataplane.compute.resource_usage import GroupUsage, UsageReader, choose_cores
from portside.dataplane.compute.scaling import Load, ReplicaBounds, Scaler, count_needed_replicas, find_tier_bounds
from portside.listener_api import Scale
from tests.desired import build_desired_deployment, build_desired_revision

ONE = UUID(int=1)
SPEC = {"min_scale": 1, "max_scale": 1, "queue_min_scale": 1, "queue_max_scale": 1}


@pytest.mark.parametrize(
    ("given", "spec", "scale"),
    [
        ({}, SPEC, {"all": (1, 1)}),
        ({}, {}, {"all": (1, 1)}),
        ({}, {**SPEC, "max_scale": 10, "queue_max_scale": 10}, {"api": (1, 10), "queue": (1, 10)}),
        ({"max_scale": 1}, {**SPEC, "max_scale": 10, "queue_max_scale": 10}, {"all": (1, 1)}),
        ({"max_scale": 3}, SPEC, {"api": (1, 3), "queue": (1, 3)}),
        ({"queue_max_scale": 4}, SPEC, {"api": (1, 1), "queue": (1, 4)}),
        ({"max_scale": 3, "queue_max_scale": 5}, SPEC, {"api": (1, 3), "queue": (1, 5)}),
        ({"min_scale": 2}, SPEC, {"api": (2, 2), "queue": (2, 2)}),
        ({}, {**SPEC, "min_scale": 2, "max_scale": 5}, {"api": (2, 5), "queue": (1, 1)}),
        ({"queue_min_scale": 3}, {**SPEC, "max_scale": 5}, {"api": (1, 5), "queue": (3, 3)}),
    ],
)
def test_owner_bounds_override_revision(given: dict[str, int], spec: dict[str, Any], scale: dict[str, tuple[int, int]]):
    deployment = build_desired_deployment(id=ONE, name="x", scale=Scale(**given))
    revision = build_desired_revision(id=ONE, status="DEPLOYED", resource_spec=spec)
    assert find_tier_bounds(deployment, revision) == {tier: ReplicaBounds(*bounds) for tier, bounds in scale.items()}


@pytest.mark.parametrize(
    ("replicas", "cpu", "pending", "number"),
    [(1, None, None, 0), (1, 0.0, 10, 1), (1, 0.0, 11, 2), (2, 0.75, 0, 2), (2, 0.9, 0, 3), (4, 0.1, 95, 10)],
)
def test_needed_replicas_by_pending_runs_and_cpu(replicas: int, cpu: float | None, pending: int | None, number: int):
    assert count_needed_replicas(Load(replicas, cpu, pending)) == number


def test_scaler_grows_at_once_and_shrinks_later():
    scaler = Scaler(ReplicaBounds(1, 5), down_after_s=60)
    pending = [(0, 0, 1), (1, 35, 4), (2, 999, 5), (30, 0, 5), (61, 0, 5), (62, 11, 5), (63, 0, 2), (123, 0, 1)]
    for moment, runs, number in pending:
        assert scaler.decide(Load(1, None, runs), now=moment) == number, moment

    scaler.bounds = ReplicaBounds(3, 5)
    assert scaler.decide(Load(1, None, 0), now=124) == 3


def test_scaler_keeps_the_highest_number_of_its_time():
    rng = random.Random(random.randrange(2**32))
    scaler = Scaler(ReplicaBounds(0, 100), down_after_s=10)
    told = []
    moment = 0.0
    for _ in range(2000):
        moment += rng.choice((0.1, 1, 5, 15))
        told.append((moment, rng.randrange(100)))
        expected = max(number for at, number in told if at >= moment - 10)
        assert scaler.decide(Load(1, None, told[-1][1] * 10), now=moment) == expected


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system confines no process to cores")
def test_cpu_limit_becomes_whole_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 4, 5})
    assert choose_cores(UUID(int=3), 1.5) == {5, 0}
    assert choose_cores(UUID(int=1), 3) == {1, 4, 5}
    assert choose_cores(ONE, 4) == choose_cores(ONE, None) == frozenset()


def put_process(proc: Path, pid: int, group: int, pages: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = ["S", "1", str(group), *["0"] * 8, "100", "50", *["0"] * 8, str(pages)]
    (proc / str(pid) / "stat").write_text(f"{pid} (a name) {' '.join(fields)}")


def test_usage_reader_caches_for_a_moment(tmp_path: Path, monkeypatch):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "stat").touch()
    moment = 1000.0
    monkeypatch.setattr("portside.dataplane.compute.resource_usage.time.monotonic", lambda: moment)

    for pid, group in ((10, 10), (11, 10), (20, 20)):
        put_process(tmp_path, pid, group, 5)

    reader = UsageReader(tmp_path)
    one = reader.read({10})
    assert one.groups.keys() == {10}
    assert one.groups[10].cpu_s > 0
    put_process(tmp_path, 20, 20, 500)

    other = reader.read({20, 30})
    assert other.read_at == one.read_at
    assert other.groups.keys() == {20}
    assert other.groups[20].memory * 2 == one.groups[10].memory, "as it was at the first look"
    moment += 1.5
    later = reader.read({20})
    assert later.read_at > one.read_at

    assert later.groups[20].memory == 50 * one.groups[10].memory
    assert reader.read(set()).groups == {}


async def test_many_callers_of_the_usage_reader_share_one_reading(tmp_path: Path, monkeypatch):
    readings = []
    monkeypatch.setattr(resource_usage, "_read_all", lambda proc: readings.append(proc) or {1: GroupUsage(2.0, 3)})
    reader = UsageReader()
    found = await asyncio.gather(*(reader.usage({1, 2}) for _ in range(50)))
    assert {each.read_at for each in found} == {found[0].read_at}
    assert [each.groups for each in found] == [{1: GroupUsage(2.0, 3)}] * 50
    assert len(readings) == 1
