"""The Lease by which one listener at a time works for a compute id (`coordination.k8s.io`).

A listener that finds the Lease of another one says so and waits. It takes the Lease over when the holder has given it
back, or has not renewed it for `HELD_FOR_S` seconds as this listener has seen them: clocks are not compared. A listener
that ends gives its Lease back; one that is killed and starts again on the same home takes it back at once.

The name of the Lease has the listener's id, so listeners of other platforms or compute ids never meet.
"""

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from portside.dataplane.compute.kubernetes.api import (
    ClusterDenied,
    ClusterRefused,
    ClusterUnavailable,
    KubernetesApi,
)
from portside.dataplane.compute.kubernetes.objects import MANAGED_BY, MANAGER, Json
from portside.kernel.clock import now
from portside.kernel.errors import UserMistake
from portside.kernel.files import make_private_dir, write_private
from portside.kernel.logs import get_logger

log = get_logger(__name__)
HELD_FOR_S = 15
# Without the right to use Leases, and after an API server has started, which knows no roles yet.
_DENIED_FOR_S = 60.0


@dataclass(frozen=True)
class LeaseTiming:
    """How often a Lease is renewed, and for how long it is held without that; in seconds."""

    renew_s: float = 5.0
    held_for_s: float = float(HELD_FOR_S)
    denied_for_s: float = _DENIED_FOR_S


def read_identity(folder: Path) -> str:
    """Return the name of the listener of a home folder, which stays the same when it starts again."""
    file = make_private_dir(folder) / "lease-identity"
    with contextlib.suppress(OSError):
        text = file.read_text("utf-8").strip()
        if text:
            return text

    identity = f"{socket.gethostname()}_{uuid4()}"
    write_private(file, identity)
    return identity


class Lease:
    """The Lease of one listener id in a namespace."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        listener_id: UUID,
        identity: str,
        timing: LeaseTiming = LeaseTiming(),
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = f"portside-listener-{listener_id}"
        self._identity = identity
        self._timing = timing
        # What another holder wrote last, and when it was seen first, as a time of the monotonic clock.
        self._seen: tuple[object, float] | None = None
        self._is_held = False

    async def acquire(self) -> None:
        """Wait until the Lease is this listener's. Without the right to use Leases go on, with a warning."""
        started_at = time.monotonic()
        logged_holder = ""
        while True:
            try:
                holder = await self._try_to_hold()
            except (ClusterDenied, ClusterRefused) as exc:
                if time.monotonic() - started_at >= self._timing.denied_for_s:
                    log.warning(
                        "a second listener would not be noticed: the cluster refuses the use of a Lease; apply "
                        "'portside manifests' again",
                        error=str(exc),
                    )
                    return
            except ClusterUnavailable as exc:
                log.warning("the Lease of this listener cannot be read yet", error=str(exc))
            else:
                if holder is None:
                    return

                if holder != logged_holder:
                    logged_holder = holder
                    log.warning(
                        "another listener with this compute id is at work; this one waits until that ends. Stop one "
                        "of them, or give it another COMPUTE_ID",
                        holder=holder,
                        lease=f"{self._namespace}/{self._name}",
                    )

            await asyncio.sleep(self._timing.renew_s)

    async def renew(self) -> None:
        """Renew the Lease. Raises UserMistake when another listener has taken it."""
        # While the cluster does not answer, nobody else can take the Lease either.
        with contextlib.suppress(ClusterUnavailable, ClusterRefused):
            holder = await self._try_to_hold()
            if holder is not None:
                raise UserMistake(
                    f"the listener {holder} has taken the Lease {self._namespace}/{self._name}: two listeners run with "
                    "one compute id; stop one, or give it another COMPUTE_ID"
                )

    async def release(self) -> None:
        """Give the Lease back, so that the next listener need not wait."""
        with contextlib.suppress(ClusterUnavailable, ClusterRefused):
            live = await self._api.get("Lease", self._namespace, self._name)
            if self._is_held and live is not None and live["spec"].get("holderIdentity") == self._identity:
                await self._api.replace(self._build(live, holder=""))

        self._is_held = False

    async def _try_to_hold(self) -> str | None:
        """Take or renew the Lease and return None; return the holder if it is another listener."""
        live = await self._api.get("Lease", self._namespace, self._name)
        if live is None:
            await self._api.create(self._build(None, holder=self._identity))
        else:
            holder = live["spec"].get("holderIdentity") or ""
            if holder not in {"", self._identity} and not self._has_expired(live):
                return holder

            # The resourceVersion in it lets one of several take over.
            await self._api.replace(self._build(live, holder=self._identity))

        self._seen = None
        self._is_held = True
        return None

    def _has_expired(self, live: Json) -> bool:
        version = live["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = version, time.monotonic()

        return time.monotonic() - self._seen[1] >= self._timing.held_for_s

    def _build(self, live: Json | None, *, holder: str) -> Json:
        metadata: Json = {"name": self._name, "namespace": self._namespace, "labels": {MANAGED_BY: MANAGER}}
        spec = {} if live is None else dict(live["spec"])
        before = spec.get("holderIdentity")
        moment = now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if live is not None:
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]

        spec |= {"holderIdentity": holder, "leaseDurationSeconds": HELD_FOR_S, "renewTime": moment}
        if before != holder:
            spec["acquireTime"] = moment
            spec["leaseTransitions"] = spec.get("leaseTransitions", 0) + (before is not None)

        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
