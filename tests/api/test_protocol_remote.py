"""Graphs emit the same events locally and to clients of this server.

Locally is langgraph's own `astream_events(version="v3")`; here are the stock SDK's thread stream and `RemoteGraph`.
"""

import asyncio
from collections.abc import Iterator

import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from langgraph_sdk.client import LangGraphClient

from tests.api.streaming import new_id
from tests.servers import ServerProcess, agent_server

WITHIN_S = 300.0


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="streams") as running:
        yield running


async def stream_messages(
    client: LangGraphClient, how: str, assistant_id: str = "voice"
) -> list[tuple[str | None, list[str]]]:
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id=assistant_id) as thread:
        await thread.run.start(input={"messages": [{"role": "user", "content": how}]})
        messages = [message async for message in thread.messages]
        return [(message.message_id, [piece async for piece in message.text]) for message in messages]


@pytest.mark.needs("langchain-core", "1.4.0")
@pytest.mark.parametrize("how", ["events", "events, reported", "astream", "ainvoke"])
async def test_stream_has_tokens_of_models_but_not_of_nodes(client, how):
    [(message_id, words)] = await stream_messages(client, how)
    assert words == ["Hello,", " wor", "ld!"]
    assert message_id


@pytest.mark.needs("langchain-core", "1.4.0")
async def test_two_models_that_speak_the_protocol_at_once(client):
    assert sorted(words for _, words in await stream_messages(client, "two")) == [["a", "b"], ["c", "d"]]


@pytest.mark.needs("langchain-core", "1.4.0")
async def test_messages_have_the_ids_that_the_state_has(client):
    thread_id = new_id()
    async with asyncio.timeout(WITHIN_S), client.threads.stream(thread_id, assistant_id="voice") as thread:
        await thread.run.start(input={"messages": [{"role": "user", "content": "events"}]})
        [message] = [message async for message in thread.messages]
        output = await thread.output

    assert output["messages"][1]["id"] == message.message_id


@pytest.mark.needs("langchain-core", "1.4.0")
async def test_failed_model_emits_its_error(client):
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id="voice") as thread:
        await thread.run.start(input={"messages": [{"role": "user", "content": "fails"}]})
        [message] = [message async for message in thread.messages]
        with pytest.raises(Exception, match="lost its voice"):
            _ = [piece async for piece in message.text]


@pytest.mark.needs("langchain-core", "1.4.0")
async def test_a_node_that_reads_a_graph_reads_only_what_it_wrote(client):
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id="stage") as thread:
        await thread.run.start(input={"messages": [{"role": "user", "content": "events"}]})
        output = await thread.output

    assert output["messages"][-1]["content"] == "read []"


async def test_what_nodes_write_is_read_as_they_wrote_it(client):
    # A graph that asks nothing: the client learns of a question over a stream of its own, and then stops reading this.
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id="reports") as thread:
        await thread.run.start(input={"items": []})
        written = [data async for data in thread.extensions["progress"]]

    assert [(data["step"], data["phase"]) for data in written] == [
        ("plan", "start"),
        ("plan", "end"),
        ("check", "start"),
        ("check", "end"),
    ]

    assert set(written[0]) == {"name", "step", "phase"}


@pytest.mark.parametrize("answer", ["yes", {"decisions": [{"type": "approve"}]}, False])
async def test_a_remote_graph_resumes_with_any_answer(client, answer):
    graph = RemoteGraph("steps", client=client)
    config = {"configurable": {"thread_id": new_id()}}
    async with asyncio.timeout(WITHIN_S):
        async with await graph.astream_events({"items": []}, config=config, version="v3") as stream:
            async for _ in stream.values:
                if await stream.interrupted():
                    break

            assert [item["value"] for item in await stream.interrupts()] == ["Are we good?"]

        async with await graph.astream_events(Command(resume=answer), config=config, version="v3") as stream:
            output = await stream.output()
            assert await stream.interrupted() is False

    assert output["items"] == ["plan", str(answer)]


async def start(client: LangGraphClient, thread_id: str, **params) -> str:
    async with client.threads.stream(thread_id, assistant_id=params.pop("assistant_id", "steps")) as thread:
        return (await thread.run.start(**params))["run_id"]


async def test_an_input_is_new_where_nothing_was_asked(client):
    thread_id = new_id()
    await client.runs.join(thread_id, await start(client, thread_id, input={"items": ["one"]}))
    await client.runs.join(thread_id, await start(client, thread_id, input="answer"))
    await client.runs.join(thread_id, await start(client, thread_id, input={"items": ["two"]}))

    values = await client.threads.get_state(thread_id)
    assert values["values"]["items"] == ["one", "plan", "answer", "two", "plan"]


async def test_run_without_input_only_continues(client):
    thread_id = new_id()
    await client.runs.join(thread_id, await start(client, thread_id, input={"items": []}))
    await client.runs.join(thread_id, await start(client, thread_id))
    assert (await client.threads.get(thread_id))["status"] == "interrupted"


async def test_an_input_at_a_checkpoint_is_new(client):
    thread_id = new_id()
    await client.runs.join(thread_id, await start(client, thread_id, input={"items": []}))
    history = await client.threads.get_history(thread_id)
    config = {"configurable": {"checkpoint_id": history[-1]["checkpoint"]["checkpoint_id"]}}

    await client.runs.join(thread_id, await start(client, thread_id, input={"items": ["other"]}, config=config))
    assert (await client.threads.get_state(thread_id))["values"]["items"] == ["other", "plan"]


async def test_an_input_after_a_cancel_is_new(client, tmp_path):
    thread_id = new_id()
    path = tmp_path / "gate"
    run_id = await start(client, thread_id, assistant_id="gate", input={"path": str(path)})
    await client.runs.cancel(thread_id, run_id, wait=True)
    path.touch()

    run_id = await start(client, thread_id, assistant_id="gate", input={"path": str(path)})
    await client.runs.join(thread_id, run_id)
    assert (await client.threads.get_state(thread_id))["values"]["done"][-3:] == ["before", "through", "after"]
