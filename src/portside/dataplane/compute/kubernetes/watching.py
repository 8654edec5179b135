"""Waiting until what was applied serves, or until it is clear that it will not.

The cluster is looked at every two seconds. What a revision ends with says what the cluster said: the pods' states, the
controller's conditions, the last warnings, and the last words of a container that died.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2

from portside.dataplane.compute.kubernetes.api import ClusterAway, ClusterRefused, KubernetesApi
from portside.dataplane.compute.kubernetes.objects import COMPONENT, REVISION, Place
from portside.dataplane.compute.kubernetes.pods import CONTAINER
from portside.dataplane.compute.kubernetes.rollout import Progress, crashed_containers, judge
from portside.dataplane.failures import DeployFailed

Json = dict[str, Any]
Say = Callable[[str], None]
T = TypeVar("T")

_LAST_WORDS = 20
_SHOWN_WARNINGS = 3
_GATE_TIMEOUT_S = 5.0
_TITLES = {"api": "Deployment", "queue": "Queue Deployment", "postgres": "Postgres", "redis": "Redis"}


@dataclass(frozen=True)
class Pace:
    """How often the cluster is looked at, and for how long what looks hopeless may still come right; in seconds."""

    poll_s: float = 2.0
    patience_s: float = 30.0


@dataclass(frozen=True)
class Watch:
    """Watches one deployment's workloads; `say` gets a line for every step."""

    api: KubernetesApi
    place: Place
    say: Say
    pace: Pace = Pace()

    async def until_ready(self, manifest: Json, limit_s: float) -> None:
        """Wait until a Deployment or StatefulSet is ready. Raises DeployFailed with the reasons, and ClusterRefused."""
        component = manifest["metadata"]["labels"][COMPONENT]
        title, began, hopeless_since, said = _TITLES[component], time.monotonic(), None, ""
        while True:
            progress, pods = await self._look(manifest, limit_s)
            if str(progress) != said:
                said = str(progress)
                self.say(f"{title}: {said}")
            if progress.is_ready:
                return
            now = time.monotonic()
            hopeless_since = (hopeless_since or now) if progress.is_hopeless else None
            if hopeless_since is not None and now - hopeless_since >= self.pace.patience_s:
                raise DeployFailed(await self._report(f"{title} does not come up: {progress}", pods))
            if now - began >= limit_s:
                late = f"{title} is not ready after {limit_s:g} seconds: {progress}"
                raise DeployFailed(await self._report(late, pods))
            await asyncio.sleep(self.pace.poll_s)

    async def until_healthy(self, url: str, limit_s: float) -> None:
        """Wait until GET {url}/ok answers 200. Raises DeployFailed."""
        began, reason = time.monotonic(), ""
        async with httpx2.AsyncClient(timeout=_GATE_TIMEOUT_S) as client:
            while True:
                try:
                    answer = await client.get(f"{url}/ok")
                    if answer.status_code == 200:
                        return
                    reason = f"it answers {answer.status_code}"
                except httpx2.HTTPError as exc:
                    reason = f"{type(exc).__name__}: {exc}"
                if time.monotonic() - began >= limit_s:
                    raise DeployFailed(f"GET {url}/ok does not succeed within {limit_s:g} seconds: {reason}")
                await asyncio.sleep(self.pace.poll_s)

    async def _look(self, manifest: Json, limit_s: float) -> tuple[Progress, list[Json]]:
        metadata = manifest["metadata"]
        labels = {**self.place.selector_of(metadata["labels"][COMPONENT])}
        if REVISION in metadata["labels"]:
            labels[REVISION] = metadata["labels"][REVISION]

        async def read() -> tuple[Json | None, list[Json]]:
            live = await self.api.get(manifest["kind"], metadata["namespace"], metadata["name"])
            return live, await self.api.list("Pod", metadata["namespace"], labels)

        live, pods = await insist(read, limit_s)
        if live is None:
            raise DeployFailed(f"{manifest['kind']} {metadata['name']} was removed by somebody")
        pods = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return judge({**live, "kind": manifest["kind"]}, pods), pods

    async def _report(self, reason: str, pods: list[Json]) -> str:
        """Add what the cluster warned of and the last words of a container that died."""
        try:
            warnings, words = await self._warnings(), await self._last_words(pods)
        except (ClusterAway, ClusterRefused):
            return reason
        return "\n".join([reason, *warnings, *words])

    async def _warnings(self) -> list[str]:
        events = await self.api.list("Event", self.place.namespace, {}, {"type": "Warning"})
        ours = [event for event in events if event["involvedObject"].get("name", "").startswith(self.place.name)]
        ours.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        texts = [f"{event['involvedObject'].get('kind')}: {event.get('message', '')}" for event in ours]
        return list(dict.fromkeys(reversed(texts)))[:_SHOWN_WARNINGS]

    async def _last_words(self, pods: list[Json]) -> list[str]:
        for pod in pods:
            for container in sorted(crashed_containers(pod), key=lambda name: name != CONTAINER):
                lines = [line async for line in self.api.follow_log(pod, container, tail=_LAST_WORDS, follow=False)]
                return [f"the last lines of {container}:", *lines]
        return []


async def insist(call: Callable[[], Awaitable[T]], limit_s: float) -> T:
    """Call until the cluster answers. Raises ClusterAway after the limit, and ClusterRefused at once."""
    began, delay = time.monotonic(), 0.5
    while True:
        try:
            return await call()
        except ClusterAway:
            if time.monotonic() - began >= limit_s:
                raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, 5.0)
