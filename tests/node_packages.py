"""The npm packages that tests use, installed into a cache folder on first use.

Without Node, npm or the packages the tests skip, unless PORTSIDE_REQUIRE_NODE is 1.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from portside.agent.executors.start import BUILT

SCRIPTS = Path(__file__).parent / "js"
JAVASCRIPT_PROJECT = Path(__file__).parent / "projects" / "javascript"


def unavailable(reason: str) -> None:
    if os.environ.get("PORTSIDE_REQUIRE_NODE") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def install_packages(source: Path = SCRIPTS) -> Path:
    """Return a folder with the packages of a package.json installed; without them the test skips."""
    if not shutil.which("node") or not shutil.which("npm"):
        unavailable("node and npm are not installed")

    pins = (source / "package.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "portside" / "js"
    folder = cache / hashlib.sha256(pins).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)

    # Modules that need the packages may run at once, each in a process of its own.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _install(folder, pins)

    return folder


def javascript_runtime() -> Path:
    """Return a folder with the JavaScript executor, and its packages; without them the test skips."""
    if not (BUILT / "main.mjs").is_file():
        unavailable("the executor of JavaScript graphs is not built")

    packages = install_packages(BUILT)
    # By its content: another checkout may have another build with the same packages.
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(BUILT.rglob("*")) if file.is_file()))

    folder = packages / digest.hexdigest()[:12]
    if not folder.is_dir():
        fresh = Path(tempfile.mkdtemp(dir=packages))
        shutil.copytree(BUILT, fresh, dirs_exist_ok=True)
        (fresh / "node_modules").symlink_to(packages / "node_modules")

        with contextlib.suppress(OSError):
            fresh.rename(folder)

    return folder


def copy_of_project(target: Path, source: Path = JAVASCRIPT_PROJECT, packages_of: Path | None = None) -> Path:
    """Return a copy of a project with its packages, or those of another one, installed; without them the test skips."""
    packages = install_packages(packages_of or source)
    shutil.copytree(source, target)
    (target / "node_modules").symlink_to(packages / "node_modules")
    return target


def _install(folder: Path, pins: bytes) -> None:
    (folder / "package.json").write_bytes(pins)
    command = ["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        unavailable("npm does not answer")

    if done.returncode:
        unavailable(f"npm cannot install the packages: {done.stderr[-500:]}")

    (folder / "complete").touch()
