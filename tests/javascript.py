"""Agent servers with graphs in JavaScript, and the packages that they need."""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.node_packages import (
    JAVASCRIPT_PROJECT,
    SCRIPTS,
    copy_of_project,
    install_packages,
    javascript_runtime,
)
from tests.servers import PROJECTS, ServerProcess, agent_server

EXECUTOR = Path(__file__).parents[1] / "executor-js"


@contextlib.contextmanager
def javascript_server(database_url: str, folder: Path, **environment: str) -> Iterator[ServerProcess]:
    """A server with the graphs of tests/projects/javascript; without Node or its packages the test skips."""
    project = copy_of_project(folder / "project")
    options = {"EXECUTOR_JAVASCRIPT": str(javascript_runtime()), "EXECUTOR_START_SECS": "600", **environment}
    with agent_server(database_url, folder, project=str(project), **options) as running:
        yield running


@contextlib.contextmanager
def start_guarded_server(database_url: str, folder: Path, **environment: str) -> Iterator[ServerProcess]:
    """A server with tests/projects/guarded, whose authentication is in TypeScript, and a graph in JavaScript beside."""
    project = copy_of_project(folder / "project", PROJECTS / "guarded", JAVASCRIPT_PROJECT)
    config = json.loads((project / "langgraph.json").read_text())
    options = {
        "EXECUTOR_JAVASCRIPT": str(javascript_runtime()),
        "EXECUTOR_START_SECS": "600",
        "GRAPH_AUTH": json.dumps({**config["auth"], "path": "./auth.ts:auth"}),
        "LANGSERVE_GRAPHS": json.dumps({**config["graphs"], "told": "./graphs.mjs:told"}),
        **environment,
    }

    with agent_server(database_url, folder, project=str(project), **options) as running:
        yield running


@contextlib.contextmanager
def webapp_in_javascript(
    database_url: str,
    folder: Path,
    http: dict[str, object] | None = None,
    files: Sequence[Path] = (),
    **environment: str,
) -> Iterator[ServerProcess]:
    """A server with tests/projects/webapp, whose application is in TypeScript.

    `http` replaces keys of that section, and `files` are added to the project.
    """
    project = copy_of_project(folder / "project", PROJECTS / "webapp")
    for file in files:
        shutil.copy(file, project)

    section = json.loads((project / "langgraph.json").read_text())["http"]
    options = {
        "EXECUTOR_JAVASCRIPT": str(javascript_runtime()),
        "EXECUTOR_START_SECS": "600",
        "GRAPH_HTTP": json.dumps({**section, "app": "./web.ts:app", **(http or {})}),
        **environment,
    }

    with agent_server(database_url, folder, project=str(project), **options) as running:
        yield running


async def run_command(*command: str, cwd: Path, **variables: str) -> str:
    """Return what a command prints; if it fails, so does the test."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )

    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-6000:]
    return output.decode()


async def build_bundle(script: str, folder: Path) -> Path:
    """Return a script of tests/js as one file in a project with LangGraph's packages."""
    # Not those beside the sources: they are missing where the build came from the cache.
    packages = install_packages(EXECUTOR) / "node_modules"
    project = copy_of_project(folder / "project", JAVASCRIPT_PROJECT)
    bundle = project / f"{script}.test.mjs"

    options = [
        "--bundle",
        "--platform=node",
        "--format=esm",
        "--target=node20",
        "--external:@langchain/*",
        f"--outfile={bundle}",
    ]

    bundler = packages / ".bin" / "esbuild"
    await run_command(str(bundler), str(SCRIPTS / f"{script}.ts"), *options, cwd=EXECUTOR, NODE_PATH=str(packages))
    return bundle
