"""Real containers of a real image behind a deployment's socket. Skipped without podman."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from portside.control.resources import with_defaults
from portside.dataplane.compute.containers.manager import ContainerHost, ContainerManager
from portside.dataplane.compute.containers.replica_set import ContainerReplicaSet
from portside.dataplane.compute.interface import Release
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder
from portside.kernel.disk import DATABASE_NOTICE, DiskReserve, make_watched_folder
from portside.kernel.http.server import listen
from portside.kernel.ids import uuid7
from portside.listener_api import DesiredRevision, NewLogEntry, Secret
from tests.conftest import eventually
from tests.desired import build_desired_deployment, build_desired_revision
from tests.images import WITHIN_S, image_for_tests
from tests.servers import free_port

pytestmark = pytest.mark.timeout(WITHIN_S + 300)


@pytest.fixture(scope="module")
def image() -> str:
    return image_for_tests()


class Harness:
    """The containers of one deployment, as its listener manages them."""

    def __init__(self, folder: Path, image: str, postgres: str) -> None:
        self.image = image
        self.postgres = postgres
        self.root = folder
        self.deployment = build_desired_deployment(id=uuid4(), name="demo", environment={"PLATFORM": "yes"})
        self.lines: list[NewLogEntry] = []
        self.public = listen("127.0.0.1", 0, reuse_port=True)
        self.url = f"http://127.0.0.1:{self.public.getsockname()[1]}"

        self.replica_sets: list[ContainerReplicaSet] = []
        self.host: ContainerHost | None = None
        self.restart_listener()

    def restart_listener(self) -> None:
        """Do what a listener does at its start."""
        if self.host is not None:
            self.host.close()

        settings = ListenerSettings(
            control_plane_url="http://127.0.0.1:9",
            control_plane_api_key="",
            portside_home=str(self.root),
            provision_database_url=self.postgres,
            deployment_start_timeout_s=120,
        )

        self.host = ContainerHost(settings)
        self.manager = ContainerManager(
            self.host, self.deployment.id, DeploymentFolder(settings.folder, self.deployment.id)
        )

    def revision(self, name: str, image: str | None = None, secrets: dict[str, str] | None = None, **more: Any) -> Any:
        given = [Secret(key, value) for key, value in {"NAME": name, **(secrets or {})}.items()]
        spec = {"min_scale": 1, "cpu_limit": 2, "memory_limit_mb": 300, **more.pop("resource_spec", {})}
        return build_desired_revision(
            id=more.pop("id", None) or uuid4(),
            source="external_image",
            image_uri=image or self.image,
            secrets=given,
            resource_spec=spec,
            **more,
        )

    def replica_set(self, revision: DesiredRevision) -> ContainerReplicaSet:
        release = Release(self.deployment, revision, None)
        replica_set = self.manager.replica_set(release, self.postgres, self.public, self._log)
        self.replica_sets.append(replica_set)
        return replica_set

    async def serve(self, name: str, **more: Any) -> ContainerReplicaSet:
        replica_set = self.replica_set(self.revision(name, **more))
        await replica_set.start()
        replica_set.supervise()
        return replica_set

    async def ask(self, path: str = "/") -> Any:
        async with httpx2.AsyncClient(base_url=self.url, timeout=300) as client:
            return (await client.get(path)).raise_for_status().json()

    def running(self) -> list[str]:
        return list_containers(self.deployment.id)

    def log_text(self) -> str:
        return "\n".join(entry.message for entry in self.lines)

    async def wait_for_log(self, text: str) -> None:
        async def logged() -> bool:
            return text in self.log_text()

        await eventually(logged)

    def _log(self, _revision: UUID) -> RevisionLog:
        return RevisionLog(self._ship)

    async def _ship(self, entries: list[NewLogEntry]) -> None:
        self.lines += entries


def list_containers(deployment_id: UUID) -> list[str]:
    return podman("ps", "--all", "--quiet", "--filter", f"label=portside.deployment={deployment_id}").split()


def podman(*arguments: str, given: str | None = None) -> str:
    command = ["podman", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.fixture
async def harness(tmp_path: Path, image: str, postgres: str) -> AsyncIterator[Harness]:
    harness = Harness(tmp_path, image, postgres)
    yield harness

    for replica_set in harness.replica_sets:
        await replica_set.stop(0)

    await harness.manager.clear()
    harness.host.close()
    harness.public.close()
    assert harness.running() == []


async def test_container_is_isolated_and_gets_only_its_variables(harness: Harness):
    secrets = {"FLAVOUR": ' mint & "salt" #1 ', "EMPTY": ""}
    scratch = {
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "volume_mounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }

    await harness.serve("one", secrets=secrets, resource_spec=scratch)
    facts = await harness.ask()
    assert (facts["capabilities"], facts["no_new_privileges"]) == ("0000000000000000", "1")
    assert facts["writes"] == {"/": False, "/tmp": True, "/scratch": True}
    seen = facts["variables"]

    assert {name: seen[name] for name in ("NAME", "PLATFORM", *secrets)} == {
        "NAME": "one",
        "PLATFORM": "yes",
        **secrets,
    }

    assert "CONTROL_PLANE_API_KEY" not in seen
    assert await harness.ask("/database") is True
    await harness.wait_for_log("the server is up")
    assert "mint" not in harness.log_text()


async def test_container_watches_the_disk_of_its_machine(harness: Harness):
    """It sees how full that is, and the notice of a full database, but may change nothing there."""
    folder = make_watched_folder(harness.root)
    (folder / DATABASE_NOTICE).write_text("its databases take 99 GB of 100 GB")
    await harness.serve("one", secrets={"DISK_RESERVE_BYTES": "1"})
    facts = await harness.ask()
    found = os.statvfs(folder)

    assert facts["disk"] == {
        "size": found.f_blocks * found.f_frsize,
        "files": {DATABASE_NOTICE: "its databases take 99 GB of 100 GB"},
        "writes": False,
    }

    assert facts["variables"]["DISK_RESERVE_BYTES"] == str(DiskReserve().bytes)


async def test_containers_have_the_executors_of_the_resource_spec(harness: Harness):
    """Two containers share five executors, and each has the limits of an orchestrator and of its executors."""
    given = {"orchestrator_min_scale": 2, "orchestrator_memory_limit_mb": 200, "orchestrator_cpu_limit": 0.5}
    given |= {"executor_memory_limit_mb": 100, "executor_cpu_limit": 0.5, "queue_min_scale": 1, "queue_max_scale": 5}
    spec = with_defaults({**given, "executor_memory_mb": 64, "orchestrator_memory_mb": 64})
    await harness.serve("one", resource_spec=spec, secrets={"EXECUTORS": "7"})

    seen = (await harness.ask())["variables"]
    executors = {name: value for name, value in seen.items() if name.startswith("EXECUTOR")}
    assert executors == {"EXECUTORS": "1", "EXECUTORS_MAX": "3", "EXECUTOR_MAX_MEMORY_MB": "104"}
    running = harness.running()
    assert len(running) == 2
    limits = json.loads(podman("inspect", running[0]))[0]["HostConfig"]
    assert (limits["Memory"], limits["NanoCpus"]) == (500 * 2**20, 2_000_000_000)


async def test_switch_loses_no_request_and_removes_old_container(harness: Harness):
    old = await harness.serve("one")
    slow = [asyncio.create_task(_read(f"{harness.url}/slow")) for _ in range(3)]
    answers: list[str] = []
    done = asyncio.Event()

    async def keep_asking() -> None:
        while not done.is_set():
            answers.append((await harness.ask())["name"])

    asking = asyncio.create_task(keep_asking())
    await harness.serve("two")
    await old.stop_accepting()
    assert (await harness.ask())["name"] == "two"
    await old.drain(20)
    done.set()
    await asking

    assert await asyncio.gather(*slow) == ["." * 20] * 3
    assert set(answers) <= {"one", "two"} and answers[-1] == "two"
    assert len(harness.running()) == 1


async def _read(url: str) -> str:
    async with httpx2.AsyncClient(timeout=300) as client:
        return (await client.get(url)).raise_for_status().text


async def test_requests_rotate_and_dead_containers_are_replaced(harness: Harness):
    await harness.serve("one", resource_spec={"min_scale": 2})
    hosts = {(await harness.ask())["host"] for _ in range(4)}
    assert len(hosts) == 2

    with contextlib.suppress(httpx2.HTTPError):
        await harness.ask("/die")

    async def two_again() -> bool:
        # The relay may still choose the dead container.
        with contextlib.suppress(httpx2.HTTPError):
            return len({(await harness.ask())["host"] for _ in range(4)} - hosts) == 1
        return False

    await eventually(two_again)
    assert len(harness.running()) == 2
    await harness.wait_for_log("dying as asked")
    await harness.wait_for_log("exited with code 3")


async def test_metrics_report_runs_and_what_the_server_says(harness: Harness):
    replica_set = await harness.serve("one", secrets={"PROBLEM": "The tracing platform refuses the API key."})

    async def reported() -> bool:
        metrics = replica_set.metrics()
        return metrics is not None and metrics.problem == "The tracing platform refuses the API key."

    await eventually(reported)
    metrics = replica_set.metrics()
    assert metrics is not None
    assert (metrics.pending_runs, metrics.active_runs) == (2, 1)


@pytest.mark.thorough
async def test_memory_limit_kills_container_and_is_reported(harness: Harness):
    await harness.serve("one", resource_spec={"memory_limit_mb": 64})
    with pytest.raises(httpx2.HTTPError):
        await harness.ask("/eat")

    await harness.wait_for_log("memory_limit_mb")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "unusable"}, "this image is broken"),
        ({"image": "127.0.0.1:9/no/such:image"}, "cannot be pulled"),
        ({"image": "--privileged"}, "not a valid image name"),
        ({"secrets": {"KEY": "a\nb"}}, "'KEY' has several lines"),
        ({"secret_references": [{"name": "A", "secret_name": "b", "secret_key": "c"}]}, "secret_references"),
    ],
    ids=["server", "pull", "option", "lines", "references"],
)
async def test_failed_start_removes_containers_and_says_why(harness: Harness, change: dict[str, Any], reason: str):
    await harness.serve("one")
    with pytest.raises(DeployFailed, match=reason):
        await harness.serve(**{"name": "two", **change})

    assert (await harness.ask())["name"] == "one"
    assert len(harness.running()) == 1


async def test_next_listener_adopts_running_containers(harness: Harness):
    revision = harness.revision("one")
    first = harness.replica_set(revision)
    await first.start()
    host = (await harness.ask())["host"]

    await abandon(first)
    harness.restart_listener()
    second = harness.replica_set(revision)
    second.supervise()
    assert (await harness.ask())["host"] == host
    assert await harness.ask("/database") is True
    assert len(harness.running()) == 1


async def abandon(replica_set: ContainerReplicaSet) -> None:
    """Do what a kill of the listener does: it stops forwarding, and the containers stay."""
    replica_set._relay.close()
    for container in replica_set._containers:
        container._ended.cancel()

    replica_set._containers.clear()
    await replica_set.drain(0)


async def test_next_start_removes_leftover_containers(harness: Harness):
    revision = harness.revision("one")
    first = harness.replica_set(revision)
    await first.start()
    await abandon(first)
    harness.restart_listener()

    again = harness.replica_set(revision)
    await again.start()
    assert len(harness.running()) == 1


async def test_revision_stays_pinned_to_image_id(harness: Harness):
    named = f"localhost/{harness.deployment.id}:latest"
    podman("tag", harness.image, named)

    revision = harness.revision("one", named)
    try:
        await harness.replica_set(revision).start()
        assert (await harness.ask())["name"] == "one"
    finally:
        podman("untag", named, named)

    again = harness.revision("two", named, built_from=revision.id)
    await harness.replica_set(again).start()
    with pytest.raises(DeployFailed, match="cannot be pulled"):
        await harness.replica_set(harness.revision("three", named)).start()


@pytest.mark.thorough
async def test_pulled_images_of_replaced_revisions_are_removed(harness: Harness, tmp_path: Path):
    with registry(tmp_path) as address:
        names = [f"{address}/demo:{number}" for number in range(3)]
        for number, name in enumerate(names):
            # Each is another image.
            podman("build", "--quiet", "--tag", name, "-", given=f"FROM {harness.image}\nLABEL number={number}\n")
            podman("push", "--quiet", "--tls-verify=false", name)
            podman("rmi", name)

        revisions = [harness.revision(f"r{number}", name, id=uuid7()) for number, name in enumerate(names)]
        sets = []
        for revision in revisions:
            sets.append(harness.replica_set(revision))
            await sets[-1].start()

        kept = {revision.id for revision in revisions[1:]}
        await harness.manager.remove_unused_images(kept)
        present = podman("images", "--format", "{{.Repository}}:{{.Tag}}").split()
        assert set(names) <= set(present), "a container still uses it"
        await sets[0].stop(0)
        await harness.manager.remove_unused_images(kept)

        present = podman("images", "--format", "{{.Repository}}:{{.Tag}}").split()
        assert [name in present for name in names] == [False, True, True]

        for each in sets[1:]:
            await each.stop(0)

        await harness.manager.clear()


@pytest.mark.thorough
async def test_pulled_image_is_removed_with_its_deployment_unless_it_has_another_name(harness: Harness, tmp_path: Path):
    with registry(tmp_path) as address:
        name = f"{address}/demo:1"
        podman("push", "--quiet", "--tls-verify=false", harness.image, f"docker://{name}")
        replica_set = await harness.serve("one", image=name)
        assert (await harness.ask())["name"] == "one"
        await replica_set.stop(0)
        await harness.manager.clear()

    left = podman("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    assert name not in left
    assert harness.image in left, "an image that has another name on this machine was removed"


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
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)

        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
