"""One listener at a time works for a compute id on a cluster; a second one says so, waits, and takes over later."""

import asyncio
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from portside.dataplane.compute.kubernetes.manifests import ClusterSettings
from portside.kernel.errors import UserMistake
from tests.conftest import eventually
from tests.kubernetes import LISTENER, settings

pytest.importorskip("lightkube", reason="the extra portside[kubernetes] is not installed")

from portside.dataplane.compute.kubernetes.api import KubernetesApi
from portside.dataplane.compute.kubernetes.lease import Lease, LeaseTiming, read_identity
from portside.dataplane.compute.kubernetes.target import KubernetesCompute
from tests.cluster_api import ClusterApi, connect, lacks_right

LISTENER_ID = UUID("01930000-0000-7000-8000-000000001157")
NAME = f"portside-listener-{LISTENER_ID}"
FOREVER = LeaseTiming(renew_s=0.005, held_for_s=600, denied_for_s=0.02)


def build_lease(api: KubernetesApi, identity: str, timing: LeaseTiming = FOREVER) -> Lease:
    return Lease(api, "agents", LISTENER_ID, identity, timing)


def get_holder(cluster: ClusterApi) -> str:
    live = cluster.find("leases", NAME)
    assert live is not None
    return str(live["spec"]["holderIdentity"])


async def test_second_listener_says_so_and_waits_for_the_first() -> None:
    cluster = ClusterApi()
    async with connect(cluster) as api:
        first = build_lease(api, "first")
        await first.acquire()
        with capture_logs() as logged:
            waiting = asyncio.create_task(build_lease(api, "second").acquire())
            await eventually(lambda: asyncio.sleep(0, bool(logged)))
            await first.renew()
            assert not waiting.done()

            await first.release()
            await waiting

        assert get_holder(cluster) == "second"
        assert logged[0]["holder"] == "first"
        assert len([entry for entry in logged if "another listener" in entry["event"]]) == 1
        with pytest.raises(UserMistake, match=r"the listener second has taken the Lease .*COMPUTE_ID"):
            await first.renew()


async def test_lease_of_a_listener_that_was_killed_expires() -> None:
    cluster = ClusterApi()
    async with connect(cluster) as api:
        await build_lease(api, "killed").acquire()
        await build_lease(api, "next", LeaseTiming(renew_s=0.005, held_for_s=0.02)).acquire()
        assert get_holder(cluster) == "next"


async def test_lease_that_another_listener_has_taken_is_not_given_back() -> None:
    cluster = ClusterApi()
    async with connect(cluster) as api:
        first = build_lease(api, "first")
        await first.acquire()
        await build_lease(api, "next", LeaseTiming(renew_s=0.005, held_for_s=0.02)).acquire()

        await first.release()
        assert get_holder(cluster) == "next"


async def test_one_of_two_that_take_over_at_once_gets_the_lease() -> None:
    cluster = ClusterApi()
    async with connect(cluster) as api:
        leases = [build_lease(api, name) for name in ("one", "two")]
        tasks = [asyncio.create_task(lease.acquire()) for lease in leases]
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        assert get_holder(cluster) == ("one" if tasks[0] in done else "two")
        for task in waiting:
            task.cancel()


async def test_listener_that_starts_again_on_its_home_waits_for_nobody(tmp_path: Path) -> None:
    cluster = ClusterApi()
    async with connect(cluster) as api:
        for _ in range(2):
            await build_lease(api, read_identity(tmp_path)).acquire()
    assert read_identity(tmp_path) != read_identity(tmp_path / "another")


async def test_listener_with_another_id_gives_the_lease_of_the_first_back(tmp_path: Path) -> None:
    """A platform that was set up again gives it another id."""
    cluster = ClusterApi()
    async with connect(cluster) as api:
        listener = msgspec.structs.replace(LISTENER, portside_home=str(tmp_path))
        compute = KubernetesCompute(ClusterSettings(listener, settings()), api)
        await compute.claim(LISTENER_ID)
        await compute.claim(LISTENER_ID)
        assert get_holder(cluster) == read_identity(listener.folder)

        await compute.claim(UUID(int=2))
        assert get_holder(cluster) == ""
        other = cluster.find("leases", f"portside-listener-{UUID(int=2)}")
        assert other is not None
        assert other["spec"]["holderIdentity"] == read_identity(listener.folder)


async def test_role_without_leases_is_reported_and_stops_nothing() -> None:
    cluster = ClusterApi()
    cluster.rules.append(lambda _method, plural, namespace, _name: lacks_right("get", plural, namespace))
    async with connect(cluster) as api:
        with capture_logs() as logged:
            await build_lease(api, "old role").acquire()

    assert "apply 'portside manifests' again" in logged[-1]["event"]
    assert "cannot get resource" in logged[-1]["error"]
