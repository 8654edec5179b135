"""The image of `docker/platform.Dockerfile`: complete, and served alone, by compose files, and as the manifests say.

A container gets one volume, a read-only root, no capabilities and an ordinary user. Where this machine has no names in
networks of containers, or nothing that runs health checks, the tests say the address and run the check themselves.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx2
import pytest
import yaml
from click.testing import CliRunner

from portside.cli.manifests import manifests
from tests.conftest import eventually
from tests.db.test_dataplane_containers import podman
from tests.images import WITHIN_S, platform_image, postgres_image, read_package_options
from tests.servers import free_port

pytestmark = [pytest.mark.timeout(3 * WITHIN_S), pytest.mark.thorough]
NAME = "localhost/portside-test-platform:1"
ROOT = Path(__file__).parents[2]
CONFINED = ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges", "--no-healthcheck"]
COMPOSE = [sys.executable, "-m", "uv", "tool", "run", "--from", "podman-compose==1.6.0", "podman-compose"]
USER = 10001
# A network of its own, so that a container can have an address that is known before.
SUBNET = "10.213.7"


@pytest.fixture(scope="module")
def image() -> str:
    return platform_image(NAME)


@pytest.fixture
def start(image: str) -> Iterator[Callable[..., str]]:
    """Start containers, which end with the test."""
    names: list[str] = []

    def start(options: list[str], command: list[str] | None = None, *, of: str = image) -> str:
        names.append(f"portside-test-{uuid4().hex[:8]}")
        podman("run", "--detach", "--name", names[-1], *options, of, *(command or []))
        return names[-1]

    yield start

    for name in names:
        podman("rm", "--force", "--volumes", "--time", "30", name)


@pytest.fixture
def volume() -> Iterator[str]:
    name = f"portside-test-{uuid4().hex[:8]}"
    podman("volume", "create", name)
    yield name
    podman("volume", "rm", "--force", name)


def run_in(container: str, *command: str) -> str:
    return podman("exec", container, *command)


def logs(container: str) -> str:
    done = subprocess.run(["podman", "logs", container], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


async def wait_until_ready(container: str, url: str) -> None:
    """Wait until a platform answers. A container that ends meanwhile may be started again, as compose does."""
    async with httpx2.AsyncClient(base_url=url) as client:

        async def is_ready() -> bool:
            try:
                return (await client.get("/ok")).status_code == 200
            except httpx2.HTTPError:
                state = podman("inspect", "--format", "{{.State.Status}} {{.HostConfig.RestartPolicy.Name}}", container)
                has_ended = state.startswith("exited") and "unless-stopped" not in state
                assert not has_ended, logs(container)
                return False

        await eventually(is_ready)


async def sign_in(link: str) -> str:
    """Follow a link that signs in, as a browser does, and return whose session it gives."""
    parts = urlsplit(link)
    async with httpx2.AsyncClient(base_url=f"{parts.scheme}://{parts.netloc}") as browser:
        response = await browser.get(link, follow_redirects=True)
        assert response.status_code == 200, response.text
        [session] = [name for name in browser.cookies if "session" in name]
        return session


def test_image_is_complete(image: str):
    """It was built without what `make install` builds, which is not in its context."""
    program = (
        "import lightkube, obstore, pathlib, portside, json; folder = pathlib.Path(portside.__file__).parent\n"
        "names = ['console/static/index.html', 'console/help/index.html', 'executor_js/main.mjs']\n"
        "names += ['console/help/guides/containers.html', 'examples/hello-agent/langgraph.json']\n"
        "print(json.dumps([name for name in names if not (folder / name).is_file()]))"
    )
    run = ["run", "--rm", "--network", "none", *CONFINED, image]
    assert json.loads(podman(*run, "python", "-Ic", program)) == []
    assert "tini" in podman(*run, "sh", "-c", "command -v tini git")

    config = json.loads(podman("image", "inspect", image))[0]["Config"]
    assert config["User"] == f"{USER}:{USER}"
    assert list(config["Volumes"]) == ["/data"]
    assert "/ok" in " ".join(json.loads(podman("image", "inspect", image))[0]["Healthcheck"]["Test"])


async def test_one_container_deploys_from_git_and_keeps_everything_in_its_volume(start, volume: str, image: str):
    port = str(free_port())
    options = [
        *CONFINED,
        f"--volume={volume}:/data",
        f"--publish=127.0.0.1:{port}:{port}",
        f"--env=PORTSIDE_PORT={port}",
    ]
    url = f"http://127.0.0.1:{port}"

    # With the example, which is deployed from a git repository.
    first = start([*options, *read_package_options()], ["portside", "up"])
    await wait_until_ready(first, url)
    await eventually(has_said(first, "Agent's reply"))

    key = run_in(first, "cat", "/data/portside/api-key").strip()
    assert key not in logs(first)
    assert "token=" not in logs(first), "other people read a log"
    assert await sign_in(run_in(first, "portside", "console", "--print").strip())

    check = json.loads(podman("image", "inspect", image))[0]["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    run_in(first, *check[1:])
    podman("stop", "--time", "60", first)
    assert "stopped" in logs(first)

    second = start(options)
    await wait_until_ready(second, url)
    async with httpx2.AsyncClient(base_url=f"{url}/agents/hello-agent", headers={"X-Api-Key": key}) as agent:

        async def answers() -> bool:
            body = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "What is 6*7?"}]}}
            response = await agent.post("/runs/wait", json=body, timeout=300)
            return response.status_code == 200 and "42" in response.text

        await eventually(answers)


def has_said(container: str, text: str) -> Callable[[], Any]:
    async def look() -> bool:
        said = await asyncio.to_thread(logs, container)
        assert "not running" not in said, said
        return text in said

    return look


@pytest.fixture
async def database(start) -> str:
    """Return the address of a Postgres in a container, once it answers there."""
    variables = {"POSTGRES_USER": "portside", "POSTGRES_DB": "portside", "POSTGRES_PASSWORD": "secret"}
    options = [*(f"--env={key}={value}" for key, value in variables.items()), "--network=podman"]
    name = start(options, of=postgres_image())

    async def is_ready() -> bool:
        command = ["podman", "exec", name, "pg_isready", "--quiet", "--host=127.0.0.1"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
        return done.returncode == 0

    await eventually(is_ready)
    address = podman("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name).strip()
    return f"postgresql://portside:secret@{address}:5432/portside"


def find_pod(name: str) -> dict[str, Any]:
    printed = CliRunner().invoke(manifests, ["--image", NAME])
    found = [each for each in yaml.safe_load_all(printed.output) if each["kind"] == "Deployment"]
    [deployment] = [each for each in found if each["metadata"]["name"] == name]
    return dict(deployment["spec"]["template"]["spec"])


def to_options(pod: dict[str, Any], volumes: dict[str, Path], variables: dict[str, str]) -> list[str]:
    """Return the options with which podman runs the container of a pod."""
    security = pod["securityContext"]
    [container] = pod["containers"]
    confinement = container["securityContext"]
    assert confinement == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }

    given = {one["name"]: one.get("value", variables.get(one["name"])) for one in container["env"]}
    return [
        *CONFINED,
        "--read-only-tmpfs=false",
        f"--user={security['runAsUser']}:{security['runAsGroup']}",
        f"--group-add={security['fsGroup']}",
        "--entrypoint=" + json.dumps(container["command"]),
        *(f"--volume={volumes[mount['name']]}:{mount['mountPath']}" for mount in container["volumeMounts"]),
        *(f"--env={name}={value}" for name, value in given.items()),
    ]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """The volumes of a pod: those of `emptyDir` belong to root, and to its group."""
    folders = {name: tmp_path / name for name in ("home", "tmp")}
    for folder in folders.values():
        folder.mkdir()
        os.chown(folder, 0, USER)
        folder.chmod(0o2777)

    return folders


@pytest.mark.parametrize(("mode", "group"), [(0o2775, USER), (0o777, 0)], ids=["fsGroup", "everybody may write"])
async def test_container_of_the_manifests_starts_on_a_volume_of_root(
    start, folders, database: str, mode: int, group: int
):
    (folders["home"] / "lost+found").mkdir(mode=0o700)
    os.chown(folders["home"], 0, group)
    folders["home"].chmod(mode)

    port = free_port()
    pod = find_pod("portside")
    options = to_options(pod, folders, {"DATABASE_URL": database, "PORTSIDE_API_KEY": f"lsv2_pt_{'a' * 32}_{'b' * 10}"})
    options += [f"--publish=127.0.0.1:{port}:8700", "--network=podman"]
    for _ in range(2):  # The second start finds a home.
        name = start(options, pod["containers"][0]["args"])
        await wait_until_ready(name, f"http://127.0.0.1:{port}")
        podman("rm", "--force", "--time", "30", name)

    home = folders["home"] / "home"
    assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (USER, 0o700)
    assert (home / "master-key").stat().st_mode & 0o777 == 0o600
    assert {entry.name for entry in folders["home"].iterdir()} == {"home", "lost+found"}


async def test_image_runs_as_any_user_with_a_home_of_another(start, folders, database: str):
    """As on clusters that choose the user, with a HOME in which it may not look."""
    folders["tmp"].chmod(0o700)
    port = free_port()
    options = [
        *CONFINED,
        "--user=1000650000:0",
        "--env=HOME=/closed",
        f"--volume={folders['tmp']}:/closed",
        f"--volume={folders['home']}:/data",
        f"--env=DATABASE_URL={database}",
        f"--publish=127.0.0.1:{port}:8700",
        "--network=podman",
    ]
    name = start(options)
    await wait_until_ready(name, f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("file", ["compose.yaml", "compose.existing-postgres.yaml"])
async def test_compose_file_starts_a_platform(image: str, tmp_path: Path, file: str, database: str):
    port = free_port()
    project = f"portside-test-{uuid4().hex[:8]}"
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(ROOT / file, folder)

    values = {"PORTSIDE_IMAGE": image, "PORTSIDE_PORT": str(port), "POSTGRES_PASSWORD": uuid4().hex}
    override: dict[str, Any] = {"services": {"platform": {}}}
    if file == "compose.yaml":
        values["POSTGRES_IMAGE"] = postgres_image()
        address = f"{SUBNET}.10"
        override["services"]["platform"]["extra_hosts"] = [f"postgres:{address}"]
        override["services"]["postgres"] = {"networks": {"default": {"ipv4_address": address}}}
        override["networks"] = {"default": {"ipam": {"config": [{"subnet": f"{SUBNET}.0/24"}]}}}
    else:
        values["DATABASE_URL"] = database

    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    (folder / "override.yaml").write_text(yaml.safe_dump(override))

    def compose(*arguments: str) -> str:
        command = [*COMPOSE, "--project-name", project, "-f", file, "-f", "override.yaml", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=WITHIN_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        compose("up", "--detach", "--no-build")
        await wait_until_ready(f"{project}_platform_1", f"http://127.0.0.1:{port}")

        link = compose("exec", "-T", "platform", "portside", "console", "--print").strip()
        assert re.fullmatch(rf"http://127\.0\.0\.1:{port}/login/link\?token=\S+", link)
        assert await sign_in(link)
    finally:
        compose("down", "--volumes")
