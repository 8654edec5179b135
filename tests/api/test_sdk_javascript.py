"""The stock JavaScript client, and its hook for web pages, against a server of ours.

`tests/node_packages.py` installs the package; without it the tests skip.
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.api.hosted import open_hosted
from tests.api.test_sdk_coverage import table
from tests.node_packages import SCRIPTS, install_packages
from tests.servers import PARITY_PROJECT, ServerProcess, agent_server

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="session")
def packages() -> Path:
    """A folder with the client installed."""
    return install_packages()


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project=str(PARITY_PROJECT)) as running:
        yield running


def report(packages: Path, script: str, server: ServerProcess) -> list[dict]:
    """Run a script beside the installed packages; what it printed."""
    shutil.copy(SCRIPTS / script, packages / script)
    done = subprocess.run(
        ["node", script, server.url], cwd=packages, capture_output=True, text=True, timeout=360, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]

    return lines


def failures(lines: list[dict]) -> list[str]:
    return [f"{line['method']}: {line['error']}" for line in lines if not line["ok"]]


def test_every_method_of_the_client(packages: Path, server: ServerProcess):
    has, *checked = report(packages, "methods.mjs", server)
    rows = table().values()
    listed = {
        f"{row['method'].strip('`').partition('.')[0]}.{row['javascript'].strip('`')}": row["state"]
        for row in rows
        if row["javascript"] != "none"
    }

    assert failures(checked) == []
    assert set(listed) == set(has["methods"])
    assert {line["method"] for line in checked} == {name for name, state in listed.items() if state == "works"}


def test_the_hook_for_web_pages(packages: Path, server: ServerProcess):
    checked = report(packages, "hook.mjs", server)
    assert failures(checked) == []
    assert len(checked) == 7


async def test_datasets_evaluations_and_prompts(packages: Path, hosted_databases: Callable[[], Awaitable[str]]):
    shutil.copy(SCRIPTS / "datasets.mjs", packages / "datasets.mjs")
    async with open_hosted(await hosted_databases()) as running:
        command = ["node", "datasets.mjs", running.url, running.key]
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=packages, capture_output=True, text=True, timeout=360, check=False
        )

    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr[-3000:]
