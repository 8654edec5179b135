"""Agent servers with graphs in JavaScript, and the packages that they need."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.node_packages import JAVASCRIPT_PROJECT, copy_of_project, javascript_runtime
from tests.servers import PROJECTS, ServerProcess, agent_server


@contextlib.contextmanager
def javascript_server(database_url: str, folder: Path, **environment: str) -> Iterator[ServerProcess]:
    """A server with the graphs of tests/projects/javascript; without Node or its packages the test skips."""
    project = copy_of_project(folder / "project")
    options = {"EXECUTOR_JAVASCRIPT": str(javascript_runtime()), "EXECUTOR_START_SECS": "600", **environment}
    with agent_server(database_url, folder, project=str(project), **options) as running:
        yield running


@contextlib.contextmanager
def guarded_in_javascript(database_url: str, folder: Path, **environment: str) -> Iterator[ServerProcess]:
    """A server with tests/projects/guarded, whose authentication is in TypeScript, and a graph in TypeScript beside."""
    project = copy_of_project(folder / "project", PROJECTS / "guarded", JAVASCRIPT_PROJECT)
    config = json.loads((project / "langgraph.json").read_text())
    options = {
        "EXECUTOR_JAVASCRIPT": str(javascript_runtime()),
        "EXECUTOR_START_SECS": "600",
        "GRAPH_AUTH": json.dumps({**config["auth"], "path": "./auth.ts:auth"}),
        "LANGSERVE_GRAPHS": json.dumps({**config["graphs"], "told": "./graphs.ts:told"}),
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
