"""Projects of the shapes that published ones have are deployed from git as they are, and answer.

Each shape is a folder of `tests/projects/shapes`. They are deployed one after the other on one platform; uv keeps what
it downloaded for the next.
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from uv import find_uv_bin

from tests.platforms import Platform, open_platform
from tests.repositories import Repository

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]
SHAPES = Path(__file__).parents[1] / "projects" / "shapes"
ENDS_WITHIN_S = 400
LAST_LINES = 30
MESSAGES = {"messages": [{"role": "user", "content": "Good Day"}]}


@dataclass(frozen=True)
class Shape:
    """What a project answers. `locked` are the versions of its uv.lock, `page` is a path of its own web application."""

    answer: str
    graphs: tuple[str, ...] = ("agent",)
    config: str = "langgraph.json"
    asked: dict[str, Any] = field(default_factory=lambda: {"text": "Good Day"})
    context: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    locked: tuple[str, ...] = ()
    page: str = "/ok"
    page_has: str = '"ok":true'


EXPECTED = {
    "auth_scopes": Shape("Good Day, ada: ['threads:read']", headers={"Authorization": "Bearer token-of-ada"}),
    "cli_inmem": Shape("friendly: Good Day", context={"tone": "friendly"}),
    "dockerfile_lines": Shape("i-am-a-model", asked=MESSAGES),
    "env_absent": Shape("Hello, Good Day"),
    "env_named": Shape("Ahoy there, Good Day (loud)"),
    "http_app": Shape("Good Day: the shop is open", page="/hours", page_has="the shop is open"),
    "monorepo": Shape("Good evening, Good Day", graphs=("bot",), config="apps/bot/langgraph.json"),
    "poetry": Shape("i-heard: Good Day", asked=MESSAGES),
    "python_version": Shape("Python 3.11."),
    "requirements_txt": Shape("good-day"),
    "setup_py": Shape("good-day"),
    "six_graphs": Shape(
        "again: Good Day", graphs=("by_path", "by_module", "described", "builder", "factory", "context")
    ),
    "src_layout": Shape("Good Day (loud)", graphs=("agent", "reviewer")),
    "store_index": Shape("black coffee", asked={"text": "coffee, please"}),
    "uv_lock": Shape("langgraph 0.6.8, langgraph-sdk 0.2.9", locked=("langgraph==0.6.8", "langgraph-sdk==0.2.9")),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(platform_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    folder = tmp_path_factory.mktemp("shapes")
    async with open_platform(folder, platform_database, DEPLOYMENT_START_TIMEOUT_S="200") as platform:
        yield platform


async def test_every_shape_has_an_expected_answer() -> None:
    assert {folder.name for folder in SHAPES.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
async def test_a_project_deploys_unedited_from_git_and_answers(platform: Platform, name: str, tmp_path: Path) -> None:
    shape = EXPECTED[name]
    repository = await asyncio.to_thread(create_repository, name, shape, tmp_path / name)

    deployment = await platform.deploy(repository, name.replace("_", "-"), shape.config)
    try:
        revision = await platform.ended(deployment, ENDS_WITHIN_S)
        assert revision["status"] == "DEPLOYED", await failure(platform, deployment, revision)
        await answers(platform, await platform.url(deployment), shape)
    finally:
        await platform.delete(deployment)


def create_repository(name: str, shape: Shape, folder: Path) -> Repository:
    """Commit a shape's files, and the lock file that uv writes for it."""
    repository = Repository(folder)
    shutil.copytree(SHAPES / name, folder, dirs_exist_ok=True)

    if shape.locked:
        pins = [part for pin in shape.locked for part in ("--upgrade-package", pin)]
        subprocess.run([find_uv_bin(), "lock", "--quiet", *pins], cwd=folder, check=True)

    repository.commit({})
    return repository


async def failure(platform: Platform, deployment: str, revision: dict[str, Any]) -> str:
    """Return why a revision failed and the last lines of its logs."""
    logs = [await platform.logs(deployment, revision["id"], kind) for kind in ("build", "deploy")]
    lines = [line for log in logs for line in log.splitlines()[-LAST_LINES:]]
    return "\n".join([f"{revision['status']}: {revision['status_message']}", *lines])


async def answers(platform: Platform, url: str, shape: Shape) -> None:
    """Find an assistant of every graph with its schemas, get an answer of each, and a page."""
    key = platform.headers["X-Api-Key"]
    async with get_client(url=url, api_key=key, headers=shape.headers) as client:
        assistants = await client.assistants.search(limit=100)
        assert sorted(assistant["graph_id"] for assistant in assistants) == sorted(shape.graphs)
        for assistant in assistants:
            schemas = await client.assistants.get_schemas(assistant["assistant_id"])
            assert schemas["input_schema"]
            response = await client.runs.wait(None, assistant["assistant_id"], input=shape.asked, context=shape.context)
            assert shape.answer in json.dumps(response), (assistant["graph_id"], response)

    page = await platform.client.get(f"{url}{shape.page}", headers=shape.headers)
    assert (page.status_code, shape.page_has in page.text) == (200, True), page.text
