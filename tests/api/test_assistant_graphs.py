"""What assistants' graphs look like over HTTP, by the stock SDK and by RemoteGraph; factories among them."""

from collections.abc import Iterator

import httpx2
import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError

from tests.servers import ServerProcess, agent_server

NOBODY = "01a1fbd3-88f9-7738-8000-000000000000"


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="assistants") as running:
        yield running


async def find_assistant_id(client: LangGraphClient, graph_id: str) -> str:
    """The id of a graph's own assistant."""
    assistants = await client.assistants.search(graph_id=graph_id, metadata={"created_by": "system"})
    return assistants[0]["assistant_id"]


async def list_nodes(client: LangGraphClient, assistant_id: str, **query) -> list[str]:
    drawing = await client.assistants.get_graph(assistant_id, **query)
    return [node["id"] for node in drawing["nodes"]]


async def test_the_drawing_of_a_graph(client: LangGraphClient):
    drawing = await client.assistants.get_graph("parent")
    assert drawing == await client.assistants.get_graph(await find_assistant_id(client, "parent"))
    assert drawing["nodes"][0] == {"id": "__start__", "type": "runnable", "data": {"name": "__start__"}}
    assert drawing["nodes"][-1] == {"id": "__end__"}
    assert {"source": "pre", "target": "child", "conditional": True, "data": "yes"} in drawing["edges"]
    assert {"source": "__start__", "target": "pre"} in drawing["edges"]


async def test_xray_looks_into_subgraphs(client: LangGraphClient):
    assert "child" in await list_nodes(client, "parent", xray=False)
    shallow = await list_nodes(client, "parent", xray=1)
    assert {"child:sub1", "child:sub2", "nest:inner"} <= set(shallow)
    assert {"child:sub1", "nest:inner:deep1"} <= set(await list_nodes(client, "parent", xray=True))

    with pytest.raises(APIStatusError, match="Invalid xray value") as refused:
        await client.assistants.get_graph("parent", xray=0.5)

    assert refused.value.status_code == 422


async def test_a_remote_graph_is_drawn(server: ServerProcess, client: LangGraphClient):
    with get_sync_client(url=server.url, api_key="") as sync_client:
        remote = RemoteGraph("parent", client=client, sync_client=sync_client)
        drawn = remote.get_graph(xray=True)

    assert {"pre", "child:sub1", "nest:inner:deep2", "__end__"} <= set(drawn.nodes)
    assert "pre" in drawn.draw_mermaid()
    assert set((await remote.aget_graph()).nodes) == {"__start__", "pre", "child", "nest", "__end__"}


async def test_schemas(client: LangGraphClient):
    schemas = await client.assistants.get_schemas(await find_assistant_id(client, "parent"))
    words = {"items": {"type": "string"}, "title": "Foo", "type": "array"}
    assert schemas["graph_id"] == "parent"
    assert schemas["input_schema"]["properties"] == schemas["output_schema"]["properties"] == {"foo": words}
    assert schemas["state_schema"]["properties"] == {"foo": {**words, "default": None}}
    assert (schemas["config_schema"], schemas["context_schema"]) == ({}, None)

    contexts = {}
    for graph_id in ("configured", "limited", "personal"):
        schemas = await client.assistants.get_schemas(await find_assistant_id(client, graph_id))
        contexts[graph_id] = schemas["context_schema"]["properties"]

    assert contexts["configured"]["heat"] == {"default": 0.5, "title": "Heat", "type": "number"}
    assert contexts["limited"]["depth"]["description"] == "How far to go"
    assert contexts["personal"] == {"who": {"title": "Who", "type": "string"}}
    chat = await client.assistants.get_schemas(await find_assistant_id(client, "chat"))
    assert "HumanMessage" in chat["input_schema"]["$defs"]


async def test_schema_that_json_schema_cannot_describe_is_null(client: LangGraphClient):
    strange = await client.assistants.get_schemas(await find_assistant_id(client, "strange"))
    assert (strange["state_schema"], strange["output_schema"]) == (None, None)
    assert strange["input_schema"]["properties"].keys() == {"text"}
    assert strange["context_schema"]["properties"].keys() == {"model", "heat"}
    callbacks = await client.assistants.get_schemas(await find_assistant_id(client, "callbacks"))
    assert (callbacks["config_schema"], callbacks["context_schema"]) == (None, None)
    assert callbacks["input_schema"]["properties"].keys() == {"foo"}

    work = await client.assistants.get_schemas(await find_assistant_id(client, "work"))
    assert work["input_schema"]["properties"].keys() == {"text"}
    assert await list_nodes(client, "work") == ["work", "__start__", "__end__"]


async def test_subgraphs(client: LangGraphClient):
    parent = await find_assistant_id(client, "parent")
    found = await client.assistants.get_subgraphs(parent)
    assert found.keys() == {"child", "nest"}
    kinds = {"input_schema", "output_schema", "state_schema", "config_schema", "context_schema"}
    assert found["child"].keys() == kinds
    assert found["child"]["state_schema"]["properties"].keys() == {"foo"}
    assert (await client.assistants.get_subgraphs(parent, recurse=True)).keys() == {"child", "nest", "nest|inner"}

    assert (await client.assistants.get_subgraphs(parent, "child")).keys() == {"child"}
    assert (await client.assistants.get_subgraphs(parent, "nest|inner")).keys() == {"nest|inner"}
    assert await client.assistants.get_subgraphs(parent, "nowhere") == {}


@pytest.mark.needs("langgraph-sdk", "0.3.5")
async def test_factories_get_the_access_context_of_assistant_reads(client: LangGraphClient):
    assistant = await client.assistants.create("by_config", context={"who": "me"})
    assert "for_me" in await list_nodes(client, assistant["assistant_id"])
    assert "for_nobody" in await list_nodes(client, "by_config")
    assert "assistants.read" in await list_nodes(client, "by_runtime")
    assert "held" in await list_nodes(client, "held")
    managed = await client.assistants.create("managed", {"configurable": {"who": "you"}})
    assert {"assistants.read", "for_you"} <= set(await list_nodes(client, managed["assistant_id"]))

    schemas = await client.assistants.get_schemas(managed["assistant_id"])
    assert schemas["context_schema"]["properties"].keys() == {"who"}
    assert await client.assistants.get_subgraphs(managed["assistant_id"]) == {}


async def test_a_factory_that_fails_says_how(server: ServerProcess, client: LangGraphClient):
    failing = await find_assistant_id(client, "failing")
    async with httpx2.AsyncClient(base_url=server.url) as http:
        for path in ("graph", "schemas", "subgraphs", "subgraphs/child"):
            response = await http.get(f"/assistants/{failing}/{path}")
            assert (response.status_code, response.json()["detail"]) == (500, "Graph 'failing': KeyError: 'nowhere'")

    works = await client.assistants.create("failing", context={"nowhere": "here"})
    assert "here" in await list_nodes(client, works["assistant_id"])


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        (f"/assistants/{NOBODY}/graph", 404, "Assistant not found"),
        ("/assistants/nope/graph", 422, "Invalid assistant"),
        ("/assistants/parent/graph?xray=0", 422, "Invalid xray value"),
        ("/assistants/parent/schemas", 422, "must be a UUID"),
        (f"/assistants/{NOBODY}/schemas", 404, "Assistant not found"),
        (f"/assistants/{NOBODY}/subgraphs", 404, "Assistant not found"),
        (f"/assistants/{NOBODY}/subgraphs/child", 404, "Assistant not found"),
        (f"/assistants/{NOBODY}/subgraphs?recurse=maybe", 422, "recurse"),
    ],
)
async def test_bad_requests_are_explained(server: ServerProcess, path, status, says):
    async with httpx2.AsyncClient(base_url=server.url) as http:
        response = await http.get(path)
    assert (response.status_code, says in str(response.json()["detail"])) == (status, True), response.text
