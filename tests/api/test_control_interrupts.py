"""An interrupt that comes while traffic moves: what serves in the end is what the control plane calls active."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

from portside.dataplane.api import ControlPlane
from portside.dataplane.compute.interface import LogOf, Release
from portside.dataplane.delivery import Workplace
from portside.dataplane.listener import Listener
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.types import DesiredDeployment
from tests.api.control_server import Control, control
from tests.conftest import eventually


class Quay:
    """A compute of one berth that serves whatever it is given at once, and lets a test act while it does."""

    compute_type, takes_builds = "process", False
    url, is_running, is_provisioned = "http://127.0.0.1:1", False, True

    def __init__(self) -> None:
        self.served: list[UUID] = []
        self.meanwhile: Callable[[Release], Awaitable[None]] | None = None

    def berth(self, deployment_id: UUID, log_of: LogOf) -> "Quay":
        return self

    def revisions(self) -> set[UUID]:
        return set(self.served)

    async def provision(self) -> None: ...

    async def switch(self, release: Release) -> None:
        self.served.append(release.revision.id)
        if self.meanwhile is not None:
            await self.meanwhile(release)

    async def restore(self, release: Release) -> None: ...

    async def follow(self, deployment: DesiredDeployment) -> None: ...

    def measures(self) -> None: ...

    async def withdraw(self) -> None: ...

    async def close(self) -> None: ...


async def test_what_was_interrupted_while_it_took_over_gives_the_place_back(fresh_database, tmp_path: Path) -> None:
    async with control(await fresh_database()) as plane:
        base, key = str(plane.client.base_url), plane.client.headers["x-api-key"]
        settings = ListenerSettings(
            control_plane_url=base, control_plane_api_key=key, portside_home=str(tmp_path), compute_id="quay"
        )
        api, quay = ControlPlane(base, key), Quay()
        listener = Listener(Workplace(settings, api, quay, asyncio.Semaphore(1)))
        working = asyncio.create_task(listener.run())
        try:
            await _interrupt_a_switch(plane, quay)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await listener.close()
            await api.close()


async def _interrupt_a_switch(plane: Control, quay: Quay) -> None:
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

    quay.meanwhile = interrupt
    second = (await plane.patch(made["id"], source_revision_config={"image_uri": "a:2"}))["latest_revision_id"]

    async def is_taken_back() -> bool:
        return [str(served) for served in quay.served] == [first, second, first]

    assert await eventually(is_taken_back)
    assert await plane.statuses(made["id"]) == ["DEPLOYED", "INTERRUPTED"]
    assert await is_active()
