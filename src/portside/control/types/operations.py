"""How many replicas a deployment may have, and what it was found to use: both our own, beside the contract."""

from typing import Annotated

import msgspec
from msgspec import Meta

from portside.control.types.deployments import Moment

Replicas = Annotated[int, Meta(ge=1, le=1000)]
Number = Annotated[int, Meta(ge=0, le=2**53)]
Amount = Annotated[float, Meta(ge=0)]


class Scale(msgspec.Struct):
    """From how many to how many replicas; null is what the revision's `resource_spec` or the deployment's type says.

    `min_scale` and `max_scale` hold for the queue too, unless something is said of it.
    """

    min_scale: Replicas | None = None
    max_scale: Replicas | None = None
    queue_min_scale: Replicas | None = None
    queue_max_scale: Replicas | None = None


class Measures(msgspec.Struct, kw_only=True):
    """What a deployment uses and has to do; null is what its compute does not tell.

    `replicas` answer requests, `queue_replicas` only execute runs. `cpu` is in cores, `memory_mb` is resident memory;
    both are sums. `restarts` counts the replicas that died since the listener began. `problem` is why one is missing.
    """

    replicas: Number | None = None
    queue_replicas: Number | None = None
    cpu: Amount | None = None
    memory_mb: Amount | None = None
    restarts: Number | None = None
    pending_runs: Number | None = None
    active_runs: Number | None = None
    problem: Annotated[str, Meta(max_length=100_000)] | None = None


class DeploymentMetrics(Measures, kw_only=True):
    """What a deployment was found to use at `measured_at`, null where that was never told."""

    measured_at: Moment | None = None
