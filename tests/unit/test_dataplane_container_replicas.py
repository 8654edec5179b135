"""The containers of a release, with a runtime in memory: their environment, and when they are started and removed.

`tests/db/test_dataplane_containers.py` has real ones.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from portside.dataplane.compute.containers.container import _describe_end
from portside.dataplane.compute.containers.manager import ContainerHost, ContainerManager
from portside.dataplane.compute.containers.replica_set import ContainerReplicaSet
from portside.dataplane.compute.containers.runtime import RuntimeCommandFailed, select_variables
from portside.dataplane.compute.containers.spec import read_spec
from portside.dataplane.compute.interface import Release
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder
from portside.kernel.http.server import listen
from portside.listener_api import Secret
from tests.conftest import eventually
from tests.container_runtime import ContainerRuntime, RunningContainer
from tests.desired import build_desired_deployment, build_desired_revision
from tests.receiver import Receiver, serve

DEPLOYMENT_ID = UUID(int=7)
DATABASE_URL = "postgresql://agent:password@db.example/agent"
KEY = "a-key-of-a-model"


class Harness:
    """The containers of one deployment, whose servers answer as `servers` says."""

    def __init__(self, folder: Path, runtime: ContainerRuntime, servers: Receiver) -> None:
        self.runtime = runtime
        self.servers = servers
        self.folder = folder
        self.public = listen("127.0.0.1", 0)
        self.lines: list[str] = []
        self.replica_sets: list[ContainerReplicaSet] = []
        self.runtime.add_image("hello:1", "id-1")

    def replica_set(self, number: int = 1, **changes: Any) -> ContainerReplicaSet:
        """The containers of a revision, as a listener that has just started manages them."""
        settings = ListenerSettings(
            control_plane_url="http://127.0.0.1:9",
            control_plane_api_key="listener-key",
            portside_home=str(self.folder),
            deployment_start_timeout_s=600,
        )
        host = ContainerHost(settings)
        host._runtime = self.runtime  # type: ignore[assignment]
        given = {"resource_spec": {"min_scale": 2}, "secrets": [Secret("KEY", KEY)], **changes}
        revision = build_desired_revision(id=UUID(int=number), source="external_image", image_uri="hello:1", **given)
        deployment = build_desired_deployment(
            revision, id=DEPLOYMENT_ID, environment={"LANGSMITH_ENDPOINT": "https://platform.example", "PORT": "1"}
        )
        manager = ContainerManager(host, DEPLOYMENT_ID, DeploymentFolder(settings.folder, DEPLOYMENT_ID))
        release = Release(deployment, revision, None)
        made = manager.replica_set(release, DATABASE_URL, self.public, lambda _: RevisionLog(self._ship))
        self.replica_sets.append(made)
        return made

    async def _ship(self, entries: Any) -> None:
        self.lines += [entry.message for entry in entries]

    @property
    def containers(self) -> list[RunningContainer]:
        return list(self.runtime.containers.values())


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    servers = Receiver()
    servers.status = 200
    async with serve(servers) as url:
        harness = Harness(tmp_path, ContainerRuntime(int(url.rpartition(":")[2])), servers)
        yield harness
        for replica_set in harness.replica_sets:
            await replica_set.stop(0)

        harness.public.close()


async def serving(replica_set: ContainerReplicaSet, count: int) -> None:
    async def look() -> bool:
        metrics = replica_set.metrics()
        return metrics is not None and metrics.replicas == count

    await eventually(look)


async def test_a_container_gets_its_own_variables_and_nothing_of_the_listener(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-listener")
    secrets = [Secret("KEY", KEY), Secret("DATABASE_URI", "postgresql://elsewhere/db"), Secret("PORT", "9999")]
    await harness.replica_set(secrets=secrets).start()

    variables = harness.containers[0].variables
    assert variables["KEY"] == KEY
    assert variables["LANGSMITH_ENDPOINT"] == "https://platform.example"
    assert (variables["DATABASE_URI"], variables["POSTGRES_URI"]) == (DATABASE_URL, DATABASE_URL)
    assert variables["PORT"] == "8000"
    assert "of-the-listener" not in variables.values()
    assert "listener-key" not in variables.values()


async def test_a_release_starts_as_many_containers_as_it_asks_for(harness: Harness) -> None:
    replica_set = harness.replica_set()
    await replica_set.start()

    assert len(harness.containers) == 2
    metrics = replica_set.metrics()
    assert metrics is not None
    assert (metrics.replicas, metrics.problem) == (2, None)
    assert len(replica_set.list_ports()) == 2


async def test_a_start_that_fails_leaves_no_container(harness: Harness) -> None:
    harness.servers.status = 500
    replica_set = harness.replica_set()
    starting = asyncio.create_task(replica_set.start())
    await eventually(lambda: asyncio.sleep(0, len(harness.containers) == 2))
    harness.containers[0].end(3)

    with pytest.raises(DeployFailed, match="exited with code 3 before it answered GET /ok"):
        await starting
    assert harness.containers == []


async def test_a_start_that_fails_half_way_leaves_no_container(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = harness.runtime._run

    def fail(rest: Sequence[str], stdin: str) -> str:
        start(rest, stdin)
        raise RuntimeCommandFailed("its network is gone")

    monkeypatch.setattr(harness.runtime, "_run", fail)
    with pytest.raises(DeployFailed, match="the container cannot be started: its network is gone"):
        await harness.replica_set().start()

    assert harness.containers == []


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ({"ExitCode": 3}, "exited with code 3"),
        ({"ExitCode": 0, "OOMKilled": False}, "exited with code 0"),
        ({"ExitCode": 1, "OOMKilled": True}, "used more memory than its limit (memory_limit_mb) and was killed"),
    ],
)
def test_the_end_of_a_container_is_described(state: dict[str, Any], end: str) -> None:
    assert _describe_end(state) == end


async def test_secret_references_of_a_cluster_are_refused(harness: Harness) -> None:
    reference = {"name": "KEY", "secret_name": "keys", "secret_key": "openai"}
    with pytest.raises(DeployFailed, match="secret_references name secrets of Kubernetes"):
        await harness.replica_set(secret_references=[reference]).start()

    assert harness.containers == []


async def test_a_container_that_dies_is_replaced(harness: Harness) -> None:
    replica_set = harness.replica_set()
    await replica_set.start()
    replica_set.supervise()
    dead, other = harness.containers

    dead.end(137)
    await eventually(lambda: asyncio.sleep(0, dead.id not in harness.runtime.containers))
    await serving(replica_set, 2)

    assert other in harness.containers
    assert len(harness.containers) == 2
    await replica_set.stop(0)
    assert any("used more memory than its limit" in line for line in harness.lines)


async def test_the_next_listener_adopts_the_containers_of_its_own_plan_alone(harness: Harness) -> None:
    first = harness.replica_set()
    await first.start()
    adopted = harness.containers
    await harness.runtime.run(["run", "--name", "surplus", *_labels(adopted[0]), "id-1"])
    await harness.runtime.run(["run", "--name", "other-plan", *_labels(adopted[0], plan="another"), "id-1"])
    await harness.runtime.run(["run", "--name", "other-deployment", *_labels(adopted[0], deployment="x"), "id-1"])

    second = harness.replica_set()
    second.supervise()
    await serving(second, 2)

    assert {container.id for container in harness.containers} == {*(one.id for one in adopted), "other-deployment"}
    assert {followed for followed in harness.runtime.followed if followed[0] == adopted[0].id} == {
        (adopted[0].id, True),
        (adopted[0].id, False),
    }, "no line is in the log twice"
    await second.stop(0)
    assert harness.lines.count("Adopted a container that an earlier listener started") == 2


async def test_output_whose_copying_breaks_off_is_not_copied_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portside.dataplane.compute.containers.container._REOPEN_S", 0.0)
    harness.runtime.breaks_off = True
    await harness.replica_set(resource_spec={"min_scale": 1}).start()
    (started,) = harness.containers

    await eventually(lambda: asyncio.sleep(0, len(harness.runtime.followed) == 2))
    assert harness.runtime.followed == [(started.id, True), (started.id, False)]


async def test_a_changed_secret_starts_other_containers(harness: Harness) -> None:
    first = harness.replica_set()
    await first.start()
    before = {container.id for container in harness.containers}

    second = harness.replica_set(secrets=[Secret("KEY", "another-key")])
    second.supervise()
    await serving(second, 2)

    assert before.isdisjoint(harness.runtime.containers)
    assert {container.variables["KEY"] for container in harness.containers} == {"another-key"}


async def test_a_start_removes_what_a_killed_listener_left_of_the_same_revision(harness: Harness) -> None:
    for name, revision_id in (("left", UUID(int=1)), ("serves", UUID(int=2))):
        labels = [f"portside.deployment={DEPLOYMENT_ID}", f"portside.revision={revision_id}"]
        options = [part for label in labels for part in ("--label", label)]
        await harness.runtime.run(["run", "--name", name, *options, "id-1"])

    await harness.replica_set(1).start()
    assert "left" not in harness.runtime.containers
    assert "serves" in harness.runtime.containers, "the earlier revision serves until this one does"


async def test_containers_that_are_replaced_finish_their_work(harness: Harness) -> None:
    replica_set = harness.replica_set()
    await replica_set.start()
    replica_set.supervise()
    containers = harness.containers

    await replica_set.stop_accepting()
    assert [container.signals for container in containers] == [["TERM"], ["TERM"]]
    assert replica_set._relay.next_target() is None, "no new connection reaches them"

    draining = asyncio.create_task(replica_set.drain(600))
    for container in containers:
        assert container.id in harness.runtime.containers
        container.end(0)

    await draining
    assert harness.containers == []


async def test_secrets_in_the_output_of_containers_are_masked(harness: Harness) -> None:
    replica_set = harness.replica_set()
    replica_set._log_line(f'{{"event": "calling with {KEY}"}}')
    await replica_set.stop(0)

    assert harness.lines == ["calling with ***"]


def test_the_runtime_gets_no_secret_of_the_listener() -> None:
    given = {
        "PATH": "/bin",
        "XDG_RUNTIME_DIR": "/run/user/1",
        "DOCKER_HOST": "unix:///run/docker.sock",
        "PORTSIDE_API_KEY": "key",
        "PROVISION_DATABASE_URL": "postgresql://x",
        "CONTROL_PLANE_API_KEY": "key",
    }
    assert select_variables(given).keys() == {"PATH", "XDG_RUNTIME_DIR", "DOCKER_HOST"}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"sidecars": [{"name": "x"}]}, "sidecars run on Kubernetes only"),
        ({"init_containers": [{"name": "x"}]}, "init_containers run on Kubernetes only"),
        ({"service_account_name": "x"}, "service_account_name names an account of Kubernetes"),
        ({"image_pull_secrets": [{"name": "x"}]}, "image_pull_secrets name secrets of Kubernetes"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "is of type hostPath"),
        ({"volumes": [{"name": "x", "emptyDir": {}, "secret": {}}]}, "which exists only on Kubernetes"),
        ({"volume_mounts": [{"name": "x", "mountPath": "/"}]}, "must be an absolute path"),
        ({"volume_mounts": [{"name": "x", "mountPath": "relative"}]}, "must be an absolute path"),
        ({"volume_mounts": [{"name": "x", "mountPath": "/a/../etc"}]}, "must be an absolute path"),
        ({"volume_mounts": [{"name": "x", "mountPath": "/a,readonly"}]}, "must be an absolute path"),
        ({"volume_mounts": [{"name": "x", "mountPath": "/a", "subPath": "b"}]}, "uses subPath"),
        ({"volume_mounts": [{"name": "x", "mountPath": "/a"}, {"name": "x", "mountPath": "/b"}]}, "a second mount"),
        ({"labels": {"a=b": "c"}}, "cannot have the label"),
        ({"labels": {"a": "b\nc"}}, "cannot have the label"),
    ],
)
def test_what_a_container_of_one_machine_cannot_have_is_refused(spec: dict[str, Any], reason: str) -> None:
    with pytest.raises(DeployFailed, match=reason):
        read_spec(spec)


def test_labels_of_a_user_never_replace_those_of_the_listener() -> None:
    assert read_spec({"labels": {"portside.deployment": "another", "team": "blue"}}).labels == {"team": "blue"}


def _labels(container: RunningContainer, **changes: str) -> list[str]:
    labels = {**container.labels, **{f"portside.{name}": value for name, value in changes.items()}}
    return [part for name, value in labels.items() for part in ("--label", f"{name}={value}")]
