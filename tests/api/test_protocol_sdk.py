"""The stock SDK's thread stream against our event streaming protocol, over SSE and over WebSocket."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.api.streaming import new_id
from tests.servers import ServerProcess, agent_server

HI = {"messages": [{"role": "user", "content": "hi"}]}
TRANSPORTS = ["sse", "websocket"]
WITHIN_S = 300.0


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="streams") as running:
        yield running


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_values_and_output(client, transport):
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id="echo", transport=transport) as thread:
        await thread.run.start(input=HI)
        values = [state async for state in thread.values]
        output = await thread.output

    assert [message["content"] for message in output["messages"]] == ["hi", "echo: hi"]
    assert values[-1] == output


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_messages_piece_by_piece(client, transport):
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id="chat", transport=transport) as thread:
        await thread.run.start(input=HI)
        messages = [message async for message in thread.messages]
        pieces = [piece async for piece in messages[0].text]
        whole = await messages[0].output

    assert len(messages) == 1
    assert pieces == ["one", " ", "two", " ", "three"]
    assert whole.text == "one two three"
    assert messages[0].node == "talk"


@pytest.mark.needs("langgraph", "1.2.0")
async def test_tool_calls(client):
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id="agent") as thread:
        await thread.run.start(input=HI)
        calls = [call async for call in thread.tool_calls]
        output = await calls[0].output

    assert [(call.name, call.input) for call in calls] == [("look_up", {"place": "Bergen"})]
    assert output["content"] == "rain in Bergen"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_question_is_answered(client, transport):
    streamed = client.threads.stream(new_id(), assistant_id="approval", transport=transport)
    async with asyncio.timeout(WITHIN_S), streamed as thread:
        await thread.run.start(input={"text": "a"})

        # The client learns of the question and of states over two streams, so its last state may be an earlier one. If
        # it learned of the question before it read the first state, the states do not end by themselves.
        async for _ in thread.values:
            if thread.interrupted:
                break

        assert thread.interrupted
        assert [item["value"] for item in thread.interrupts] == [{"question": "approve?", "text": "a!"}]

        # The client gets the end only if it has subscribed by then, so it subscribes first.
        states = aiter(thread.values)
        after = [await anext(states)]
        await thread.run.respond("yes")
        after += [state async for state in states]
        output = await thread.output

    assert after[0] == {"text": "a!"}
    assert output == after[-1] == {"text": "done:yes", "decision": "yes"}


async def test_a_subgraph_asks(client):
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id="parent") as thread:
        await thread.run.start(input={"foo": ["in"], "asks": True})

        async for _ in thread.values:
            if thread.interrupted:
                break

        assert [len(item["namespace"]) for item in thread.interrupts] == [1]
        await thread.run.respond("yes")
        output = await thread.output

    assert output["foo"][-1] == "sub2 yes"


async def test_subgraphs_are_found(client):
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id="parent") as thread:
        await thread.run.start(input={"foo": ["in"]})
        found = [subgraph async for subgraph in thread.subgraphs]
        assert await thread.output

    assert [(subgraph.graph_name, subgraph.status) for subgraph in found] == [("child", "completed")]
    assert found[0].path[0].startswith("child:")


async def test_what_a_node_wrote_under_a_name(client):
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id="parent") as thread:
        await thread.run.start(input={"foo": ["in"]})
        written = [data async for data in thread.extensions["progress"]]

    assert written == [{"name": "progress", "payload": {"step": 2}}]


async def test_failed_run_ends_the_stream_with_an_error(client):
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id="boom") as thread:
        await thread.run.start(input={"foo": []})
        with pytest.raises(RuntimeError, match="kaboom"):
            await thread.output


async def test_cancelled_run_ends_its_followers(client, tmp_path):
    thread_id = new_id()
    async with asyncio.timeout(WITHIN_S), client.threads.stream(thread_id, assistant_id="gate") as thread:
        run = await thread.run.start(input={"path": str(tmp_path / "never")})

        async for state in thread.values:
            if state.get("done"):
                break

        await client.runs.cancel(thread_id, run["run_id"])
        with pytest.raises(RuntimeError, match="Run errored"):
            await thread.output


async def test_a_second_run_on_one_stream(client):
    async with asyncio.timeout(WITHIN_S), client.threads.stream(assistant_id="echo") as thread:
        await thread.run.start(input=HI)
        first = [state async for state in thread.values]

        # A client that begins to listen after the end of the second run waits for ever, so it listens first.
        states = aiter(thread.values)
        assert await anext(states) == first[-1]
        await thread.run.start(input=HI)
        second = [state async for state in states]

    assert [len(values[-1]["messages"]) for values in (first, second)] == [2, 4]
