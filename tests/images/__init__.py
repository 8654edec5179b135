"""An image for tests of containers, made of a root file system that Debian's packages are put together to.

No registry is asked. The root file system is kept in the user's cache, and so is the image in its runtime's store;
where there is no runtime, or nothing to make an image of, the tests that want one are skipped.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_CERTIFICATES = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")
_PYTHON = "localhost/portside-test-python:1"
_POSTGRES = "localhost/portside-test-postgres:1"
IMAGE = "localhost/portside-test-server:7"
BASE = "localhost/portside-test-base:1"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "portside" / "containers"
# Time for a test that is the first to need the image, which takes minutes to make on a busy machine.
WITHIN_S = 1500
_LEFT_OUT = ("man", "doc", "locale")


def image_for_tests() -> str:
    """Return the name of the image, which is on this machine then."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")

    tried = _run("podman", "run", "--rm", "--network", "none", "--memory", "64m", _base(), "true", check=False)
    if tried.returncode != 0:
        pytest.skip(f"podman cannot run a container on this machine: {tried.stderr.strip()}")

    if _run("podman", "image", "exists", IMAGE, check=False).returncode != 0:
        _run(
            "podman",
            "build",
            "--quiet",
            "--isolation",
            "chroot",
            "--build-arg",
            f"BASE={BASE}",
            "--tag",
            IMAGE,
            str(Path(__file__).parent),
        )

    return IMAGE


def agent_image(name: str, *options: str) -> str:
    """Build `docker/agent.Dockerfile` with packages from where this machine's pip and npm get them; return its name."""
    return _build_ours(name, "agent", *options)


def platform_image(name: str, *options: str) -> str:
    """Build `docker/platform.Dockerfile` in the same way; return its name."""
    return _build_ours(name, "platform", *options)


def postgres_image() -> str:
    """Build a stand-in for the published images of Postgres, from Debian's packages; return its name."""
    folder = Path(__file__).parent / "postgres"
    image_for_tests()
    return _build(_POSTGRES, "--format", "docker", "--build-arg", f"BASE={BASE}", str(folder))


def _build_ours(name: str, program: str, *options: str) -> str:
    image_for_tests()

    if _run("podman", "image", "exists", _PYTHON, check=False).returncode != 0:
        lines = f"FROM {BASE}\nRUN apt-get update && apt-get install -y --no-install-recommends python3-venv"
        # As in images of Python, `python` and `pip` are those of /usr/local, and may be installed into.
        _build(_PYTHON, "--file", "-", str(Path(__file__).parent), given=f"{lines} && python3 -m venv /usr/local\n")

    # Docker's format, because the other one has no health checks.
    options = ("--format", "docker", "--build-arg", f"PYTHON={_PYTHON}", *options)
    return _build(name, "--file", str(_ROOT / "docker" / f"{program}.Dockerfile"), *options, str(_ROOT))


def project_image(name: str, base: str, folder: Path, install: str) -> str:
    """Build the image of a project as the guide says, with a command that installs its packages; return its name."""
    lines = f"FROM {base}\nUSER root\nCOPY . /app\nRUN {install}\nUSER 10001:10001\n"
    return _build(name, "--file", "-", str(folder), given=lines)


def _build(name: str, *arguments: str, given: str = "") -> str:
    command = ["podman", "build", "--quiet", "--isolation", "chroot"]
    command += [*read_package_options(), "--tag", name, *arguments]
    built = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert built.returncode == 0, built.stderr[-4000:] + built.stdout[-4000:]

    return name


def _package_sources() -> set[Path]:
    """Return the files and folders that the configuration of pip and npm names, and the files that have it."""
    files = [Path("/etc/pip.conf"), *(Path(name).expanduser() for name in ("~/.config/pip/pip.conf", "~/.npmrc"))]
    said = _run(sys.executable, "-m", "pip", "config", "list", check=False).stdout
    named = [Path(path) for path in re.findall(r"(?:file://|(?<=['\" ]))(/[^'\" ]+)", said)]

    # An index is a folder of links to the files beside it.
    folders = [path.parent if path.name == "simple" else path for path in named]
    certificates = [Path(os.environ[variable]) for variable in _CERTIFICATES if variable in os.environ]
    return {path for path in (*files, *folders, *certificates) if path.exists()}


def read_package_options() -> list[str]:
    """Return the options of `podman run` with which a container gets packages from where this machine gets them."""
    seen = [f"--volume={path}:{path}:ro" for path in sorted(_package_sources())]
    passed_on = [f"--env={variable}" for variable in os.environ if variable.startswith(("PIP_", *_CERTIFICATES))]
    return [*seen, *passed_on]


def read_digest(image: str) -> str:
    """Return the digest by which an image of this machine can be named."""
    return _run("podman", "image", "inspect", "--format", "{{.Digest}}", image).stdout.strip()


def _configuration() -> Path:
    """Write podman's configuration for tests. By itself podman raises limits, and crun refuses mixed cgroups."""
    lines = ["[containers]", 'default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]']
    if shutil.which("runc"):
        lines += ["[engine]", 'runtime = "runc"']

    _CACHE.mkdir(parents=True, exist_ok=True)
    file = _CACHE / f"containers-{os.getpid()}.conf"
    file.write_text("\n".join(lines) + "\n")

    return file.rename(_CACHE / "containers.conf")


def _base() -> str:
    if _run("podman", "image", "exists", BASE, check=False).returncode != 0:
        archive = _CACHE / "rootfs.tar"
        if not archive.exists():
            if shutil.which("mmdebstrap") is None:
                pytest.skip("there is no image to test with: mmdebstrap is not installed")

            archive.parent.mkdir(parents=True, exist_ok=True)
            smaller = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT]
            partial = archive.with_name("partial.tar")

            _run(
                "mmdebstrap",
                "--variant=minbase",
                "--include=python3,ca-certificates",
                *smaller,
                "bookworm",
                str(partial),
            )

            partial.replace(archive)

        _run("podman", "import", "--quiet", str(archive), BASE)

    return BASE


def _run(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=check, timeout=WITHIN_S)


# Set while tests are collected: servers that a fixture starts before a test asks for the image inherit it too.
if shutil.which("podman"):
    os.environ.setdefault("CONTAINERS_CONF", str(_configuration()))
