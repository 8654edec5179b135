"""Interrupts of a rollout during its switch.

In the end the active revision of the control plane serves, and a rollout that was interrupted during its switch is
rolled back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

from portside.dataplane.api import ControlPlane
from portside.dataplane.build_slots import BuildSlots
from portside.dataplane.compute.interface import OpenLog, Release
from portside.dataplane.listener import ReconcilerSet
from portside.dataplane.rollout import ListenerContext
from portside.dataplane.settings import ListenerSettings
from portside.listener_api import DesiredDeployment
from tests.api.control_server import Control, control
from tests.conftest import eventually


class RecordingCompute:
    """A compute with one target that serves every release at once, and runs a callback of the test meanwhile."""

    compute_type = "process"
    builds_sources = False
    size_limits = None
    url = "http://127.0.0.1:1"
    is_running = False

    def __init__(self) -> None:
        self.served: list[UUID] = []
        self.meanwhile: Callable[[Release], Awaitable[None]] | None = None

    def target(self, deployment_id: UUID, open_log: OpenLog) -> "RecordingCompute":
        return self

    async def claim(self, listener_id: UUID) -> None: ...

    def list_revisions(self) -> set[UUID]:
        return set(self.served)

    async def is_provisioned(self) -> bool:
        return True

    async def provision(self, deployment: DesiredDeployment, *, is_new: bool) -> None: ...

    async def switch(self, release: Release) -> None:
        self.served.append(release.revision.id)
        if self.meanwhile is not None:
            await self.meanwhile(release)

    async def restore(self, release: Release) -> None: ...

    async def update(self, deployment: DesiredDeployment) -> None: ...

    def metrics(self) -> None: ...

    async def destroy(self, deployment: DesiredDeployment) -> None: ...

    async def close(self) -> None: ...


async def test_interrupt_during_switch_rolls_back(control_databases, tmp_path: Path) -> None:
    async with control(await control_databases()) as plane:
        base = str(plane.client.base_url)
        key = plane.client.headers["x-api-key"]
        settings = ListenerSettings(
            control_plane_url=base, control_plane_api_key=key, portside_home=str(tmp_path), compute_id="compute"
        )
        api = ControlPlane(base, key)

        compute = RecordingCompute()
        listener = ReconcilerSet(ListenerContext(settings, api, compute, BuildSlots(1)))
        working = asyncio.create_task(listener.run())
        try:
            await _interrupt_a_switch(plane, compute)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await listener.close()
            await api.close()


async def _interrupt_a_switch(plane: Control, compute: RecordingCompute) -> None:
    body = {"name": "agent", "source": "external_image", "source_config": {"resource_spec": {}}}
    made = (
        await plane.client.post("/v2/deployments", json={**body, "source_revision_config": {"image_uri": "a:1"}})
    ).json()
    first = made["latest_revision_id"]

    async def is_active() -> bool:
        return (await plane.get(made["id"]))["active_revision_id"] == first

    assert await eventually(is_active)

    async def interrupt(release: Release) -> None:
        if str(release.revision.id) != first:
            path = f"/v2/deployments/{made['id']}/revisions/{release.revision.id}/interrupt"
            assert (await plane.client.post(path)).status_code == 200

    compute.meanwhile = interrupt
    second = (await plane.patch(made["id"], source_revision_config={"image_uri": "a:2"}))["latest_revision_id"]

    async def is_taken_back() -> bool:
        return [str(served) for served in compute.served] == [first, second, first]

    assert await eventually(is_taken_back)
    assert await plane.statuses(made["id"]) == ["DEPLOYED", "INTERRUPTED"]
    assert await is_active()
