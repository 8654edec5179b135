"""Real containers of a real image behind a deployment's socket. Skipped where podman is not to be had."""

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from portside.dataplane.compute.containers.bay import Bay, Containers
from portside.dataplane.compute.containers.fleet import ContainerFleet
from portside.dataplane.compute.interface import Release
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder
from portside.dataplane.types import DesiredDeployment, DesiredRevision, LogEntry, Secret
from portside.kernel.http.server import listen
from tests.conftest import eventually
from tests.images import image_for_tests
from tests.servers import free_port

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def image() -> str:
    return image_for_tests()


class Quay:
    """One deployment of images, as its listener has it."""

    def __init__(self, folder: Path, image: str, postgres: str) -> None:
        self.image, self.postgres, self.root = image, postgres, folder
        self.deployment = DesiredDeployment(id=uuid4(), name="demo", status="READY", environment={"PLATFORM": "yes"})
        self.lines: list[LogEntry] = []
        self.public = listen("127.0.0.1", 0, reuse_port=True)
        self.url = f"http://127.0.0.1:{self.public.getsockname()[1]}"
        self.fleets: list[ContainerFleet] = []
        self.containers: Containers | None = None
        self.moor()

    def moor(self) -> None:
        """What a listener does at its start."""
        if self.containers is not None:
            self.containers.close()
        settings = ListenerSettings(
            control_plane_url="http://127.0.0.1:9", control_plane_api_key="", portside_home=str(self.root),
            provision_database_url=self.postgres, deployment_start_timeout_s=20,
        )  # fmt: skip
        self.containers = Containers(settings)
        self.bay = Bay(self.containers, self.deployment.id, DeploymentFolder(settings.folder, self.deployment.id))

    def revision(self, name: str, image: str | None = None, secrets: dict[str, str] | None = None, **more: Any) -> Any:
        given = [Secret(key, value) for key, value in {"NAME": name, **(secrets or {})}.items()]
        spec = {"min_scale": 1, "cpu_limit": 2, "memory_limit_mb": 300, **more.pop("resource_spec", {})}
        return DesiredRevision(
            id=uuid4(), number=1, status="DEPLOYING", source="external_image", image_uri=image or self.image,
            secrets=given, resource_spec=spec, **more,
        )  # fmt: skip

    def fleet(self, revision: DesiredRevision) -> ContainerFleet:
        release = Release(self.deployment, revision, None)
        made = self.bay.fleet(release, self.postgres, self.public, self._log)
        self.fleets.append(made)
        return made

    async def serve(self, name: str, **more: Any) -> ContainerFleet:
        fleet = self.fleet(self.revision(name, **more))
        await fleet.start()
        fleet.keep()
        return fleet

    async def ask(self, path: str = "/") -> Any:
        async with httpx2.AsyncClient(base_url=self.url, timeout=30) as client:
            return (await client.get(path)).raise_for_status().json()

    def running(self) -> list[str]:
        return containers_of(self.deployment.id)

    def said(self) -> str:
        return "\n".join(entry.message for entry in self.lines)

    async def hears(self, text: str) -> None:
        async def heard() -> bool:
            return text in self.said()

        await eventually(heard)

    def _log(self, _revision: UUID) -> RevisionLog:
        return RevisionLog(self._ship)

    async def _ship(self, entries: list[LogEntry]) -> None:
        self.lines += entries


def containers_of(deployment_id: UUID) -> list[str]:
    return podman("ps", "--all", "--quiet", "--filter", f"label=portside.deployment={deployment_id}").split()


def podman(*arguments: str) -> str:
    return subprocess.run(["podman", *arguments], capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.fixture
async def quay(tmp_path: Path, image: str, postgres: str) -> AsyncIterator[Quay]:
    quay = Quay(tmp_path, image, postgres)
    yield quay
    for fleet in quay.fleets:
        await fleet.stop(0)
    await quay.bay.clear()
    quay.containers.close()
    quay.public.close()
    assert quay.running() == []


async def test_a_container_is_confined_and_sees_only_what_is_meant_for_it(quay: Quay):
    secrets = {"FLAVOUR": ' mint & "salt" #1 ', "EMPTY": ""}
    scratch = {
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "volume_mounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    await quay.serve("one", secrets=secrets, resource_spec=scratch)
    facts = await quay.ask()
    assert (facts["capabilities"], facts["no_new_privileges"]) == ("0000000000000000", "1")
    assert facts["writes"] == {"/": False, "/tmp": True, "/scratch": True}
    seen = facts["variables"]
    assert {name: seen[name] for name in ("NAME", "PLATFORM", *secrets)} == {
        "NAME": "one",
        "PLATFORM": "yes",
        **secrets,
    }
    assert "CONTROL_PLANE_API_KEY" not in seen
    assert await quay.ask("/database") is True
    await quay.hears("the server is up")
    assert "mint" not in quay.said()


async def test_a_switch_cuts_no_request_and_the_old_container_goes(quay: Quay):
    old = await quay.serve("one")
    slow = [asyncio.create_task(_read(f"{quay.url}/slow")) for _ in range(3)]
    answers: list[str] = []
    done = asyncio.Event()

    async def keep_asking() -> None:
        while not done.is_set():
            answers.append((await quay.ask())["name"])

    asking = asyncio.create_task(keep_asking())
    await quay.serve("two")
    await old.withdraw()
    assert (await quay.ask())["name"] == "two"
    await old.end(20)
    done.set()
    await asking
    assert await asyncio.gather(*slow) == ["." * 20] * 3
    assert set(answers) <= {"one", "two"} and answers[-1] == "two"
    assert len(quay.running()) == 1


async def _read(url: str) -> str:
    async with httpx2.AsyncClient(timeout=30) as client:
        return (await client.get(url)).raise_for_status().text


async def test_requests_go_to_all_replicas_in_turn_and_the_dead_are_replaced(quay: Quay):
    await quay.serve("one", resource_spec={"min_scale": 2})
    hosts = {(await quay.ask())["host"] for _ in range(4)}
    assert len(hosts) == 2
    with contextlib.suppress(httpx2.HTTPError):
        await quay.ask("/die")

    async def two_again() -> bool:
        return len({(await quay.ask())["host"] for _ in range(4)} - hosts) == 1

    await eventually(two_again)
    assert len(quay.running()) == 2
    await quay.hears("dying as asked")
    await quay.hears("exited with code 3")


@pytest.mark.thorough
async def test_memory_is_bounded_and_the_reason_is_told(quay: Quay):
    await quay.serve("one", resource_spec={"memory_limit_mb": 64})
    with pytest.raises(httpx2.HTTPError):
        await quay.ask("/eat")
    await quay.hears("memory_limit_mb")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "broken"}, "this image is broken"),
        ({"image": "127.0.0.1:9/no/such:image"}, "cannot be pulled"),
        ({"image": "--privileged"}, "no name of an image"),
        ({"secrets": {"KEY": "a\nb"}}, "'KEY' spans several lines"),
        ({"secret_references": [{"name": "A", "secret_name": "b", "secret_key": "c"}]}, "secret_references"),
    ],
    ids=["server", "pull", "option", "lines", "references"],
)
async def test_what_does_not_come_up_leaves_nothing_and_says_why(quay: Quay, change: dict[str, Any], reason: str):
    await quay.serve("one")
    with pytest.raises(DeployFailed, match=reason):
        await quay.serve(**{"name": "two", **change})
    assert (await quay.ask())["name"] == "one"
    assert len(quay.running()) == 1


async def test_a_listener_that_was_killed_finds_its_containers_again(quay: Quay):
    revision = quay.revision("one")
    first = quay.fleet(revision)
    await first.start()
    host = (await quay.ask())["host"]
    await forget(first)
    quay.moor()
    second = quay.fleet(revision)
    second.keep()
    assert (await quay.ask())["host"] == host
    assert await quay.ask("/database") is True
    assert len(quay.running()) == 1


async def forget(fleet: ContainerFleet) -> None:
    """What a kill of the listener does: its program goes, the containers stay."""
    fleet._relay.close()
    for container in fleet._containers:
        container._ended.cancel()
    fleet._containers.clear()
    await fleet.end(0)


async def test_a_start_that_was_cut_short_is_cleared_away_by_the_next(quay: Quay):
    revision = quay.revision("one")
    first = quay.fleet(revision)
    await first.start()
    await forget(first)
    quay.moor()
    again = quay.fleet(revision)
    await again.start()
    assert len(quay.running()) == 1


async def test_a_revision_stays_with_the_image_its_tag_named(quay: Quay):
    named = f"localhost/{quay.deployment.id}:latest"
    podman("tag", quay.image, named)
    revision = quay.revision("one", named)
    try:
        await quay.fleet(revision).start()
        assert (await quay.ask())["name"] == "one"
    finally:
        podman("untag", named, named)
    again = quay.revision("two", named, built_from=revision.id)
    await quay.fleet(again).start()
    with pytest.raises(DeployFailed, match="cannot be pulled"):
        await quay.fleet(quay.revision("three", named)).start()


@pytest.mark.thorough
async def test_an_image_comes_from_a_registry_and_goes_with_its_deployment(quay: Quay, tmp_path: Path):
    with registry(tmp_path) as address:
        name = f"{address}/demo:1"
        podman("push", "--quiet", "--tls-verify=false", quay.image, f"docker://{name}")
        fleet = await quay.serve("one", image=name)
        assert (await quay.ask())["name"] == "one"
        await fleet.stop(0)
        await quay.bay.clear()
    assert name not in podman("images", "--format", "{{.Repository}}:{{.Tag}}")


@contextlib.contextmanager
def registry(folder: Path) -> Any:
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed")
    port = free_port()
    config = folder / "registry.yml"
    storage = {"filesystem": {"rootdirectory": str(folder / "images")}}
    config.write_text(json.dumps({"version": 0.1, "storage": storage, "http": {"addr": f"127.0.0.1:{port}"}}))
    with (folder / "registry.log").open("wb") as output:
        process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=output, stderr=output)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
