"""A deployment's pods, followed: their output on its way to the deploy logs, and what they say of the deployment.

Pods are looked for every few seconds; each container has a follower until it ends. Those that ran when the listener
started are followed from then on, all others from their first line.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from portside.dataplane.compute.interface import LogOf
from portside.dataplane.compute.kubernetes.api import ClusterAway, ClusterRefused, KubernetesApi
from portside.dataplane.compute.kubernetes.measures import measure
from portside.dataplane.compute.kubernetes.objects import COMPONENT, REVISION, Place, owned_by
from portside.dataplane.compute.kubernetes.pods import CONTAINER
from portside.dataplane.compute.output import parse_line
from portside.dataplane.logs import RevisionLog
from portside.dataplane.types import Measures
from portside.kernel.logs import get_logger

Json = dict[str, Any]
# Pod, container, how often it was started again.
Key = tuple[str, str, int]

log = get_logger(__name__)
_LOOK_S = 5.0
_MAX_FOLLOWED = 200
_PARTS = frozenset({"api", "queue"})


class PodFollower:
    """Follows the servers' pods of one deployment until it is closed."""

    def __init__(self, api: KubernetesApi, place: Place, log_of: LogOf, *, from_now: bool) -> None:
        self._api, self._place, self._log_of, self._from_now = api, place, log_of, from_now
        self._logs: dict[UUID, RevisionLog] = {}
        self._followers: dict[Key, asyncio.Task[None]] = {}
        self.measures: Measures | None = None
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop following; what was read is shipped."""
        tasks = [self._task, *self._followers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(revision_log.close() for revision_log in self._logs.values()))

    async def _run(self) -> None:
        while True:
            try:
                pods = await self._api.list("Pod", self._place.namespace, owned_by(self._place.deployment_id))
            except (ClusterAway, ClusterRefused) as exc:
                log.warning(
                    "the pods of a deployment cannot be listed", namespace=self._place.namespace, error=str(exc)
                )
            else:
                self.measures = measure(pods)
                self._follow(pods)
                await self._close_logs(pods)
                self._from_now = False
            await asyncio.sleep(_LOOK_S)

    def _follow(self, pods: list[Json]) -> None:
        seen = {key: pod for pod in pods if _part(pod) in _PARTS for key in _started_containers(pod)}
        for key in [key for key, task in self._followers.items() if task.done() and key not in seen]:
            del self._followers[key]
        for key, pod in seen.items():
            if key not in self._followers and len(self._followers) < _MAX_FOLLOWED:
                self._followers[key] = asyncio.create_task(self._ship(pod, key[1], 1 if self._from_now else None))

    async def _ship(self, pod: Json, container: str, since_s: int | None) -> None:
        revision_id = UUID(pod["metadata"]["labels"][REVISION])
        revision_log = self._logs.get(revision_id)
        if revision_log is None:
            revision_log = self._logs[revision_id] = self._log_of(revision_id)
        prefix = "" if container == CONTAINER else f"[{container}] "
        try:
            async for line in self._api.follow_log(pod, container, since_s=since_s):
                entry = parse_line(line, int(time.time() * 1000))
                revision_log.add(prefix + entry.message, entry.level, entry.timestamp)
        except (ClusterAway, ClusterRefused) as exc:
            revision_log.add(f"The log of {pod['metadata']['name']} breaks off: {exc}", "WARNING")

    async def _close_logs(self, pods: list[Json]) -> None:
        alive = {pod["metadata"]["labels"].get(REVISION) for pod in pods}
        for revision_id in [known for known in self._logs if str(known) not in alive]:
            await self._logs.pop(revision_id).close()


def _part(pod: Json) -> str:
    return str(pod["metadata"]["labels"].get(COMPONENT))


def _started_containers(pod: Json) -> Iterator[Key]:
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if "waiting" not in (container.get("state") or {"waiting": {}}):
            yield pod["metadata"]["uid"], container["name"], container.get("restartCount", 0)
