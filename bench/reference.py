"""The reference server, in an environment of its own.

It is installed from pinned versions into a cache folder, and used over HTTP alone.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx2
from tests.servers import free_port

PINS = Path(__file__).parent / "parity" / "reference.txt"
QUIET = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_API_KEY": ""}
START_S = 90


class Reference(NamedTuple):
    """A running reference server."""

    url: str
    port: int
    pid: int


def reference_version() -> str:
    """Return the pinned version of the reference server."""
    return next(line.partition("==")[2] for line in PINS.read_text().splitlines() if line.startswith("langgraph-api=="))


def reference_environment() -> Path:
    """Return the folder of the reference's virtual environment; it is made on first use and when the pins change."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "portside" / "parity"
    folder = cache / hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        print(f"installing the reference server into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--requirement", str(PINS)]

        subprocess.run(install, check=True)
        (folder / "complete").touch()

    return folder


@contextlib.contextmanager
def reference_process(source: Path) -> Iterator[Reference]:
    """Run a reference server on a copy of a project."""
    programs = reference_environment() / "bin"
    with tempfile.TemporaryDirectory() as folder:
        project = shutil.copytree(source, Path(folder) / "project", ignore=shutil.ignore_patterns("__pycache__"))
        port = free_port()
        log = Path(folder) / "reference.log"

        command = [str(programs / "langgraph"), "dev", "--no-browser", "--no-reload", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--n-jobs-per-worker", "10"]
        environment = {**os.environ, **QUIET, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=project, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

        try:
            _wait_until_ok(f"http://127.0.0.1:{port}", process, log)
            yield Reference(f"http://127.0.0.1:{port}", port, process.pid)
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_ok(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx2.HTTPError):
            if httpx2.get(f"{url}/ok", timeout=5, trust_env=False).status_code == 200:
                return

        time.sleep(0.1)

    raise RuntimeError(f"the reference server did not start:\n{log.read_text()[-3000:]}")
