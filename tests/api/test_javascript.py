"""Graphs in JavaScript and TypeScript, executed by Node beside the server, do what Python graphs do."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.node_packages import copy_of_project, javascript_runtime
from tests.servers import ServerProcess, agent_server

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("javascript")
    project, runtime = copy_of_project(folder / "project"), javascript_runtime()
    options = {"EXECUTOR_JAVASCRIPT": str(runtime), "EXECUTOR_START_SECS": "600"}
    with agent_server(module_database, folder, project=str(project), **options) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=120) as made:
        yield made


def asked(client: httpx2.Client, method: str, path: str, **body: Any) -> Any:
    response = client.request(method, path, json=body or None)
    assert response.is_success, response.text
    return response.json()


def message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_a_thread_remembers(client: httpx2.Client):
    thread = asked(client, "POST", "/threads", metadata={})["thread_id"]
    for count in (1, 2):
        values = asked(
            client, "POST", f"/threads/{thread}/runs/wait", assistant_id="echo", input=message(f"number {count}")
        )
        assert (values["count"], values["messages"][-1]["content"]) == (count, f"echo: number {count}")
    assert [each["type"] for each in values["messages"]] == ["human", "ai", "human", "ai"]
    state = asked(client, "GET", f"/threads/{thread}/state")
    assert (state["values"], state["next"]) == (values, [])
    assert asked(client, "GET", f"/threads/{thread}")["values"] == values
