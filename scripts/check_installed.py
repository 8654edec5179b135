"""Installs a wheel of Portside into an empty environment and uses it as a stranger does, in a home folder of its own.

    check_installed.py WHEEL [--python PROGRAM] [--with pip|pipx|uvx] [--agent FOLDER] [--only-version]

It starts the platform, which deploys the example agent, then asks the agent, opens the console and runs the doctor.
`--agent` deploys the agent in a folder too, for example one in JavaScript. Nothing stays behind. It needs a package
index, and uv, which is in .venv.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

INSTALLERS = ("pip", "pipx", "uvx")
# All that an empty environment gets of this one: where packages come from, and what reaches them.
PASSED_ON = re.compile(
    r"PIP_.*|UV_.*|npm_config_.*|SSL_CERT_FILE|NODE_EXTRA_CA_CERTS|LANG|LC_.*|TMPDIR|.*_proxy", re.IGNORECASE
)
# The end of what `portside up` prints after it has asked the example.
HAS_STARTED = "Ctrl-C stops everything"
QUESTION = "what is 6*7"
ANSWER = "42"
# Only ends a check that failed: a slow machine needs minutes.
WITHIN_S = 1200


class CheckError(Exception):
    """The installed package does not do what it should; the message says what it did instead."""


class Installation:
    """An environment with nothing but a wheel and what it requires, in a folder with a home for its user."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        self.command: list[str] = []
        self.environment = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
        self.environment["HOME"] = str(folder)
        self.environment["PATH"] = os.pathsep.join(["/usr/local/bin", "/usr/bin", "/bin"])
        # Caches of downloads are no part of an environment.
        for variable, name in (("UV_CACHE_DIR", "uv"), ("PIP_CACHE_DIR", "pip"), ("npm_config_cache", "npm")):
            self.environment.setdefault(variable, str(Path("~/.cache").expanduser() / name))

    def install(self, wheel: Path, installer: str) -> None:
        """Install the wheel, and set the command that runs it. Raises CheckError."""
        uv = str(Path(sys.executable).parent / "uv")
        if installer == "pip":
            venv = self.folder / "venv"
            self.run([self.python, "-m", "venv", str(venv)])
            self.run([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel)])
            self.command = [str(venv / "bin" / "portside")]
        elif installer == "pipx":
            bin_folder = self.folder / ".local" / "bin"
            self.run([uv, "tool", "run", "--quiet", "pipx", "install", "--quiet", "--python", self.python, str(wheel)])
            self.command = [str(bin_folder / "portside")]
        else:
            self.command = [uv, "tool", "run", "--quiet", "--python", self.python, "--from", str(wheel), "portside"]

    def run(self, command: list[str]) -> str:
        """Run a program in the environment and return what it printed. Raises CheckError."""
        result = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN_S,
        )
        if result.returncode != 0:
            message = f"{' '.join(command)} exited with {result.returncode}:\n{result.stdout}{result.stderr}"
            raise CheckError(message)

        return result.stdout

    def portside(self, *arguments: str) -> str:
        return self.run([*self.command, *arguments])


class RunningPlatform:
    """`portside up` of an installation, with a home folder and a port of its own; leaving it stops everything."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.home = installation.folder / "home"
        self.url = f"http://127.0.0.1:{find_free_port()}"
        self.log = ""
        self._has_started = threading.Event()

    def __enter__(self) -> Self:
        port = self.url.rpartition(":")[2]
        self.process = subprocess.Popen(
            [*self.installation.command, "up", "--home", str(self.home), "--port", port],
            cwd=self.installation.folder,
            env=self.installation.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read_log, daemon=True).start()
        self._has_started.wait(WITHIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log += line
            if HAS_STARTED in line:
                self._has_started.set()

        self._has_started.set()

    def ask(self, path: str, body: object = None) -> bytes:
        """Return what a path of the platform answers with its first API key. Raises CheckError."""
        key = (self.home / "api-key").read_text().strip()
        headers = {"X-Api-Key": key, "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=WITHIN_S) as response:
                return bytes(response.read())
        except urllib.error.URLError as problem:
            message = f"{path} did not answer: {problem}"
            raise CheckError(message) from problem


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the interpreter, by its path")
    parser.add_argument("--with", dest="installer", choices=INSTALLERS, default="pip")
    parser.add_argument("--agent", type=Path, help="a folder with an agent to deploy and ask, beside the example")
    parser.add_argument("--only-version", action="store_true", help="install it, and ask for its version alone")
    options = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="portside-check-"))
    try:
        installation = install(options.wheel.resolve(), options.installer, Installation(folder, options.python))
        if not options.only_version:
            use(installation, options.agent)
    except CheckError as problem:
        print(f"check_installed: {problem}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    return 0


def install(wheel: Path, installer: str, installation: Installation) -> Installation:
    """Install a wheel, and look which version it says it is. Raises CheckError."""
    version = installation.run([installation.python, "--version"]).strip()
    say(f"installing {wheel.name} with {installer} for {version}")
    installation.install(wheel, installer)
    check_version(installation, wheel)
    return installation


def use(installation: Installation, agent: Path | None) -> None:
    """Start the platform of an installation, and do what a stranger does first. Raises CheckError."""
    say("starting the platform, which deploys the example and asks it")
    with RunningPlatform(installation) as platform:
        check_example(platform)
        check_console(platform)
        check_doctor(platform)
        if agent is not None:
            check_agent(platform, agent.resolve())

    say("stopped")


def check_version(installation: Installation, wheel: Path) -> None:
    """The program says the version that the file's name has."""
    expected = wheel.name.split("-")[1]
    answer = installation.portside("--version").strip()
    if answer != f"portside, version {expected}":
        message = f"portside --version says {answer!r}, and the wheel is of {expected}"
        raise CheckError(message)

    say(answer)


def check_example(platform: RunningPlatform) -> None:
    """The first start has deployed the example and printed its reply, and it answers to a stock request too."""
    if HAS_STARTED not in platform.log or ANSWER not in platform.log:
        message = f"'portside up' did not end its start:\n{platform.log}"
        raise CheckError(message)

    say(ask_agent(platform, "hello-agent"))


def ask_agent(platform: RunningPlatform, name: str) -> str:
    """Ask a deployed agent and return its last message. Raises CheckError."""
    question = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": QUESTION}]}}
    state = json.loads(platform.ask(f"/agents/{name}/runs/wait", question))
    reply = str(state["messages"][-1]["content"])
    if ANSWER not in reply:
        message = f"{name} answered {reply!r} to {QUESTION!r}"
        raise CheckError(message)

    return f"{name}: {reply}"


def check_console(platform: RunningPlatform) -> None:
    """The first page of the console is served with everything that it names, and so is the documentation."""
    index = platform.ask("/console/").decode()
    files = re.findall(r'(?:src|href)="(/console/[^"]+)"', index)
    if not any(file.endswith(".js") for file in files):
        message = f"/console/ names no script:\n{index}"
        raise CheckError(message)

    if b"<title>" not in platform.ask("/help/"):
        message = "/help/ is no page"
        raise CheckError(message)

    sizes = [len(platform.ask(file)) for file in files]
    say(f"the console's first page: {len(files)} files, {sum(sizes)} bytes")


def check_doctor(platform: RunningPlatform) -> None:
    """The doctor finds no fault. Warnings, such as that there is no backup yet, are right."""
    port = platform.url.rpartition(":")[2]
    report = json.loads(
        platform.installation.portside("doctor", "--home", str(platform.home), "--port", port, "--json")
    )
    say(f"the doctor: {report['faults']} faults, {report['warnings']} warnings")


def check_agent(platform: RunningPlatform, folder: Path) -> None:
    """An agent from a folder is deployed and answers."""
    say(f"deploying {folder.name}")
    platform.installation.portside("deploy", str(folder), "--upload", "--name", "another", "--home", str(platform.home))
    say(ask_agent(platform, "another"))


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_STARTED_AT = time.monotonic()


def say(text: str) -> None:
    print(f"  {time.monotonic() - _STARTED_AT:4.0f} s  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
