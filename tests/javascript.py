"""Agent servers with graphs in JavaScript, and the packages that they need."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.node_packages import copy_of_project, javascript_runtime
from tests.servers import ServerProcess, agent_server


@contextlib.contextmanager
def javascript_server(database_url: str, folder: Path, **environment: str) -> Iterator[ServerProcess]:
    """A server with the graphs of tests/projects/javascript; without Node or its packages the test skips."""
    project = copy_of_project(folder / "project")
    options = {"EXECUTOR_JAVASCRIPT": str(javascript_runtime()), "EXECUTOR_START_SECS": "600", **environment}
    with agent_server(database_url, folder, project=str(project), **options) as running:
        yield running
