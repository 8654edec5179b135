"""How many replicas of each tier a deployment has.

A small deployment is one process that answers requests and executes runs (tier `all`). When it may have more than one
replica, or the queue has its own bounds, replicas that answer (`api`) and replicas that execute (`queue`) are separate
processes, so that each tier scales by its own load.
"""

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from portside.listener_api import DesiredDeployment, DesiredRevision

RUNS_PER_REPLICA = 10
CPU_TARGET = 0.75


class ServerTier(StrEnum):
    """What a server does (PORTSIDE_TIER): answers requests, executes runs, or both."""

    ALL = "all"
    API = "api"
    QUEUE = "queue"
    # It executes runs for servers of tier queue. Only clusters have them.
    EXECUTOR = "executor"


@dataclass(frozen=True)
class ReplicaBounds:
    """The minimum and the maximum number of replicas."""

    minimum: int
    maximum: int

    def clamp(self, number: int) -> int:
        """Return the number, or the bound that it exceeds."""
        return max(self.minimum, min(number, self.maximum))


def find_tier_bounds(deployment: DesiredDeployment, revision: DesiredRevision) -> dict[ServerTier, ReplicaBounds]:
    """Return the tiers that serve a revision, and the bounds of each."""
    scale = {name: value for name, value in msgspec.to_builtins(deployment.scale).items() if value is not None}
    # A bound that the owner sets for all replicas applies to the queue as well, unless the queue has its own.
    queue_scale = {f"queue_{name}": value for name, value in scale.items() if not name.startswith("queue_")}
    spec = {**revision.resource_spec, **queue_scale, **scale}

    api = _read_bounds(spec, "")
    queue = _read_bounds(spec, "queue_")

    if api == queue and api.maximum == 1:
        return {ServerTier.ALL: api}

    return {ServerTier.API: api, ServerTier.QUEUE: queue}


def _read_bounds(spec: Mapping[str, Any], prefix: str) -> ReplicaBounds:
    minimum = max(1, int(spec.get(f"{prefix}min_scale", 1)))
    maximum = max(minimum, int(spec.get(f"{prefix}max_scale", 1)))
    return ReplicaBounds(minimum, maximum)


@dataclass(frozen=True)
class Load:
    """The load of one tier: `cpu` is the average share that each replica uses of its CPU allowance."""

    replicas: int
    cpu: float | None
    pending_runs: int | None


class Scaler:
    """Decides the number of replicas of one tier: it grows at once and shrinks after `down_after_s` of less load."""

    def __init__(self, bounds: ReplicaBounds, down_after_s: float) -> None:
        self.bounds = bounds
        self._down_after_s = down_after_s

        # Numbers that were needed and when, without those that a later one at least equals: the first is the highest.
        self._needed: deque[tuple[float, int]] = deque()

    def decide(self, load: Load, now: float | None = None) -> int:
        """Return the number of replicas: the highest number that was needed within the last `down_after_s`."""
        moment = time.monotonic() if now is None else now
        number = count_needed_replicas(load)
        while self._needed and self._needed[-1][1] <= number:
            self._needed.pop()

        self._needed.append((moment, number))

        while self._needed[0][0] < moment - self._down_after_s:
            self._needed.popleft()

        return self.bounds.clamp(self._needed[0][1])


def count_needed_replicas(load: Load) -> int:
    """Return how many replicas a load needs: 10 pending runs each, 75 % of the CPU."""
    by_runs = math.ceil((load.pending_runs or 0) / RUNS_PER_REPLICA)
    by_cpu = math.ceil(load.replicas * (load.cpu or 0.0) / CPU_TARGET)
    return max(by_runs, by_cpu)
