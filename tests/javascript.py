"""Agent servers with graphs in JavaScript, and the packages that they need."""

import contextlib
import json
from collections.abc import Iterator
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
