"""Projects that pin old versions of libraries that servers have deploy unedited and answer.

Their environments hold the executor, which constrains nothing but langgraph; the agent server runs from the platform's.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from langgraph_sdk import get_client

from tests.api.test_project_shapes import ENDS_WITHIN_S, failure
from tests.conftest import eventually
from tests.platforms import Platform, open_platform
from tests.repositories import Repository

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]
# Each list is a project's requirements beside langgraph.
PINS = {
    "starlette": ["starlette==0.27.0"],
    "fastapi": ["fastapi==0.100.0"],
    "pydantic": ["pydantic==2.9.2"],
    "httpx": ["httpx==0.25.2"],
    "protobuf": ["protobuf==3.20.3"],
    "orjson": ["orjson==3.10.1"],
    "langgraph": ["langgraph==0.6.0", "langgraph-sdk==0.2.0", "langchain-core==0.3.67", "pydantic==2.9.2"],
    "langgraph-0-4": ["langgraph==0.4.5", "langchain-core==0.3.59"],
    "langgraph-0-5": ["langgraph==0.5.4", "langchain-core==0.3.72"],
    "langgraph-api": ["langgraph-api"],
    "all": ["starlette==0.27.0", "pydantic==2.9.2", "httpx==0.25.2", "websockets==10.4", "uvicorn==0.22.0"],
}
AGENT = """
from importlib.metadata import version
from typing import Annotated

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import BaseStore
from langgraph.types import interrupt
from pydantic import BaseModel


class State(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    versions: dict[str, str] = {}
    names: list[str] = []
    allowed: str = ""


async def answer(state: State, *, store: BaseStore) -> dict:
    await store.aput(("seen",), "last", {"names": state.names})
    versions = {name: version(name) for name in state.names}
    return {"messages": [AIMessage("seen")], "versions": versions}


def ask(state: State) -> dict:
    return {"allowed": interrupt("go on?")}


graph = (
    StateGraph(State)
    .add_node("answer", answer)
    .add_node("ask", ask)
    .add_edge(START, "answer")
    .add_edge("answer", "ask")
    .compile()
)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(platform_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    async with open_platform(tmp_path_factory.mktemp("pins"), platform_database) as platform:
        yield platform


@pytest.mark.parametrize("name", PINS)
async def test_a_project_with_old_libraries_deploys_and_answers(platform: Platform, name: str, tmp_path: Path) -> None:
    repository = Repository(tmp_path / name)
    requirements = "\n".join(["langgraph", *PINS[name]])
    config = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}
    repository.commit({"requirements.txt": requirements, "langgraph.json": json.dumps(config), "agent.py": AGENT})

    deployment = await platform.deploy(repository, name)
    try:
        revision = await platform.ended(deployment, ENDS_WITHIN_S)
        assert revision["status"] == "DEPLOYED", await failure(platform, deployment, revision)

        async def says_its_layout() -> bool:
            return "Layout split" in await platform.logs(deployment, revision["id"], "build")

        await eventually(says_its_layout)
        await answers(await platform.url(deployment), platform.headers["X-Api-Key"], PINS[name])
    finally:
        await platform.delete(deployment)


async def answers(url: str, key: str, pins: list[str]) -> None:
    """Stream a run to its interrupt, answer it, and read what the graph stored."""
    pinned = dict(pin.split("==") for pin in pins if "==" in pin)
    names = [pin.partition("==")[0] for pin in pins]
    async with get_client(url=url, api_key=key) as client:
        thread = (await client.threads.create())["thread_id"]
        asked = {"names": names, "messages": [{"role": "user", "content": "hi"}]}
        modes = ["values", "updates", "messages-tuple"]
        streamed = client.runs.stream(thread, "agent", input=asked, stream_mode=modes)  # type: ignore[arg-type]
        events = [part.event async for part in streamed]
        assert {"metadata", "values", "updates"} <= set(events)
        assert "error" not in events

        state = await client.threads.get_state(thread)
        assert state["next"] == ["ask"]
        assert state["interrupts"] == [{"value": "go on?", "id": state["interrupts"][0]["id"]}]
        assert {name: state["values"]["versions"][name] for name in pinned} == pinned
        done = await client.runs.wait(thread, "agent", command={"resume": "yes"})
        assert done["allowed"] == "yes"
        assert [message["type"] for message in done["messages"]] == ["human", "ai"]

        assert (await client.store.get_item(["seen"], "last"))["value"] == {"names": names}
        [assistant] = await client.assistants.search()
        assert (await client.assistants.get_schemas(assistant["assistant_id"]))["input_schema"]
