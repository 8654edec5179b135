"""How many replicas of which kind a deployment has.

A small deployment is one process that answers requests and executes runs (tier `all`). Where there may be more than
one, or the queue has bounds of its own, replicas that answer (`api`) and replicas that execute (`queue`) are apart, so
that each kind grows by what it lacks.
"""

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from portside.dataplane.types import DesiredDeployment, DesiredRevision

Tier = Literal["all", "api", "queue"]
RUNS_PER_REPLICA = 10
CPU_TARGET = 0.75


@dataclass(frozen=True)
class Bounds:
    """From how many to how many replicas there are."""

    least: int
    most: int

    def clamp(self, number: int) -> int:
        """Return the number, or the bound that it is beyond."""
        return max(self.least, min(number, self.most))


def scale_of(deployment: DesiredDeployment, revision: DesiredRevision) -> dict[Tier, Bounds]:
    """Return which kinds of replicas serve a revision, and how many of each."""
    said = {name: value for name, value in msgspec.to_builtins(deployment.scale).items() if value is not None}
    # What the owner says of all replicas holds for the queue too, unless something is said of the queue.
    queue_too = {f"queue_{name}": value for name, value in said.items() if not name.startswith("queue_")}
    spec = {**revision.resource_spec, **queue_too, **said}
    api, queue = _bounds(spec, ""), _bounds(spec, "queue_")
    return {"all": api} if api == queue and api.most == 1 else {"api": api, "queue": queue}


def _bounds(spec: Mapping[str, Any], prefix: str) -> Bounds:
    least = max(1, int(spec.get(f"{prefix}min_scale", 1)))
    return Bounds(least, max(least, int(spec.get(f"{prefix}max_scale", 1))))


@dataclass(frozen=True)
class Load:
    """What one kind of replicas has to do: `cpu` is the share that each uses of what it may, on average."""

    replicas: int
    cpu: float | None
    pending_runs: int | None


class Scaler:
    """Decides how many replicas of one kind there are: more at once, fewer only after `down_after_s` of less load."""

    def __init__(self, bounds: Bounds, down_after_s: float) -> None:
        self.bounds, self._down_after_s = bounds, down_after_s
        self._needed: deque[tuple[float, int]] = deque()

    def decide(self, load: Load, now: float | None = None) -> int:
        """Return how many replicas there are to be: the most that was needed within the time."""
        moment = time.monotonic() if now is None else now
        self._needed.append((moment, needed(load)))
        while self._needed[0][0] < moment - self._down_after_s:
            self._needed.popleft()
        return self.bounds.clamp(max(number for _, number in self._needed))


def needed(load: Load) -> int:
    """Return how many replicas would be right for a load (contract: 10 pending runs each, 75 % of the CPU)."""
    by_runs = math.ceil((load.pending_runs or 0) / RUNS_PER_REPLICA)
    by_cpu = math.ceil(load.replicas * (load.cpu or 0.0) / CPU_TARGET)
    return max(by_runs, by_cpu)
