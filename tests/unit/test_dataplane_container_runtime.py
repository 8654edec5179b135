"""How podman and docker are found, and what containers know of the machine."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from portside.dataplane.compute import forwarding
from portside.dataplane.compute.containers import runtime as runtimes
from portside.dataplane.compute.containers.runtime import Runtime, RuntimeCommandFailed, find_runtime
from portside.dataplane.compute.containers.spec import read_executors, read_spec
from portside.dataplane.compute.forwarding import PortForwards
from portside.dataplane.failures import DeployFailed
from portside.dataplane.settings import ListenerSettings
from portside.kernel.http.server import listen

ROOT = {"security": {"rootless": False}}
ROOTLESS = {"security": {"rootless": True}, "cgroupVersion": "v2", "cgroupControllers": ["memory", "pids"]}
PODMAN_NETWORK = [{"name": "podman", "subnets": [{"gateway": "fd00::1"}, {"gateway": "10.88.0.1"}]}]
DOCKER_NETWORK = [{"Name": "bridge", "IPAM": {"Config": [{"Gateway": "172.17.0.1"}]}}]


class Machine:
    """A machine on which these programs answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.answers: dict[str, dict[str, Any]] = {}
        self.ranges = folder / "ranges"
        self.ranges.write_text("root:1:65536\n")
        for name in ("DOCKER_HOST", "CONTAINER_HOST"):
            monkeypatch.delenv(name, raising=False)

        monkeypatch.setattr(runtimes.shutil, "which", lambda name: name if name in self.answers else None)
        monkeypatch.setattr(runtimes, "_run", self._run)
        monkeypatch.setattr(runtimes, "_ID_RANGES", (self.ranges, self.ranges))

    async def _run(self, argv: Sequence[str], stdin: bytes, within_s: float) -> str:
        answer = self.answers[argv[0]].get(argv[1])
        if answer is None:
            raise RuntimeCommandFailed("Cannot connect to the daemon")

        return json.dumps(answer)

    async def find(self, **changes: Any) -> Runtime:
        return await find_runtime(
            ListenerSettings(
                control_plane_url="http://127.0.0.1:9",
                control_plane_api_key="key",
                portside_home=str(self.folder),
                **changes,
            )
        )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


async def test_podman_of_root_limits_everything_and_is_reached_at_its_gateway(machine: Machine) -> None:
    machine.answers["podman"] = {"info": ROOT, "network": PODMAN_NETWORK}
    found = await machine.find()
    assert (found.program, found.host, found.gateway) == ("podman", "10.88.0.1", "10.88.0.1")
    assert found.isolation.limits == {"cpu", "memory", "pids"}
    assert (found.isolation.network, found.isolation.is_read_only) == ("podman", True)
    assert not found.isolation.own_user_ids, "no range of ids is for containers"

    machine.ranges.write_text("containers:1:65536\n")
    assert (await machine.find()).isolation.own_user_ids


async def test_rootless_podman_limits_what_it_is_allowed_to(machine: Machine) -> None:
    machine.answers["podman"] = {"info": ROOTLESS}
    machine.ranges.write_text("containers:1:65536\n")
    found = await machine.find()
    assert found.isolation.limits == {"memory", "pids"}
    assert not found.isolation.own_user_ids
    assert (found.host, found.gateway) == ("10.0.2.2", "127.0.0.1")

    machine.answers["podman"] = {"info": {**ROOTLESS, "cgroupVersion": "v1"}}
    assert (await machine.find()).isolation.limits == set()


async def test_docker_is_used_where_podman_does_not_work(machine: Machine) -> None:
    machine.answers = {"podman": {}, "docker": {"network": DOCKER_NETWORK}}
    found = await machine.find(container_read_only=False)
    assert (found.program, found.gateway, found.isolation.network) == ("docker", "172.17.0.1", "bridge")
    assert not found.isolation.is_read_only
    assert not found.has_own_files

    with pytest.raises(DeployFailed, match=r"podman does not work: Cannot connect"):
        await machine.find(container_runtime="podman")


async def test_a_runtime_elsewhere_sees_no_folder_of_this_machine(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.answers["docker"] = {"network": DOCKER_NETWORK}
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2375")
    assert (await machine.find()).has_own_files

    monkeypatch.setenv("DOCKER_HOST", "unix:///run/docker.sock")
    assert not (await machine.find()).has_own_files
    found = await machine.find(container_host_address="host.docker.internal")
    assert (found.has_own_files, found.host, found.gateway) == (True, "host.docker.internal", "127.0.0.1")


async def test_a_machine_without_a_runtime_says_what_to_do(machine: Machine) -> None:
    machine.answers["docker"] = {"network": DOCKER_NETWORK}
    with pytest.raises(DeployFailed, match="its setting CONTAINER_RUNTIME is none"):
        await machine.find(container_runtime="none")

    machine.answers.clear()
    with pytest.raises(DeployFailed, match="podman is not installed; docker is not installed"):
        await machine.find()


def test_each_container_has_its_share_of_the_executors() -> None:
    spec = {
        "min_scale": 1,
        "orchestrator_min_scale": 2,
        "orchestrator_max_scale": 2,
        "orchestrator_cpu_limit": 1,
        "orchestrator_memory_limit_mb": 500,
        "executor_cpu_limit": 2,
        "executor_memory_limit_mb": 1000,
        "queue_min_scale": 3,
        "queue_max_scale": 5,
    }
    executors = read_executors(spec)
    assert executors is not None
    assert executors.environment == {"EXECUTORS": "2", "EXECUTORS_MAX": "3", "EXECUTOR_MAX_MEMORY_MB": "1048"}

    # A container holds an orchestrator and the most executors that it may start.
    found = read_spec(spec)
    assert (found.replicas, found.cpu_limit, found.memory_limit_mb) == (2, 7, 3500)

    # What one of both may use without a limit has no limit as a whole.
    assert read_spec({**spec, "executor_cpu_limit": None}).cpu_limit is None
    assert read_executors({"min_scale": 2}) is None
    assert read_spec({"min_scale": 2, "memory_limit_mb": 300}).memory_limit_mb == 300


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@db.example:5432/agent",
        "postgresql://me:secret@127.0.0.1,127.0.0.2/agent",
        "https://platform.example/api",
        "redis://127.0.0.1:6379",
        "no address",
    ],
)
async def test_what_other_machines_reach_is_left_as_it_is(tmp_path: Path, url: str) -> None:
    forwards = PortForwards(tmp_path / "ports.json")
    assert await forwards.reachable_url(url, "10.0.2.2", "127.0.0.1") == url
    assert not (tmp_path / "ports.json").exists()


async def test_what_listens_on_this_machine_alone_is_forwarded_from_the_gateway(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    forwards = PortForwards(file)
    socket_url = "postgresql://me:secret@/agent?host=/run/postgres&sslmode=disable"
    by_socket = await forwards.reachable_url(socket_url, "10.0.2.2", "127.0.0.1")
    by_port = await forwards.reachable_url("http://localhost:8700/api", "fd00::1", "127.0.0.1")
    ports = json.loads(file.read_text())

    assert by_socket == f"postgresql://me:secret@10.0.2.2:{ports[':/run/postgres/.s.PGSQL.5432']}/agent?sslmode=disable"
    assert by_port == f"http://[fd00::1]:{ports['localhost:8700']}/api"
    assert file.stat().st_mode & 0o777 == 0o600
    listening = [opened.getsockname()[0] for opened, _ in forwards._open.values()]
    assert listening == ["127.0.0.1"] * 2, "not on every interface of the machine"

    forwards.close()


async def test_a_port_that_containers_know_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that outlives the listener keeps using it."""
    asked: list[tuple[str, int]] = []

    def listen_at(gateway: str, port: int) -> socket.socket:
        asked.append((gateway, port))
        return listen("127.0.0.1", 0)

    monkeypatch.setattr(forwarding, "_listen_at", listen_at)
    file = tmp_path / "ports.json"
    file.write_text('{"localhost:8700": 4321}')
    forwards = PortForwards(file)
    for url in ("http://localhost:8700", "http://localhost:8800", "http://localhost:8700"):
        await forwards.reachable_url(url, "10.0.2.2", "127.0.0.1")

    assert asked == [("127.0.0.1", 4321), ("127.0.0.1", 0)]
    forwards.close()
