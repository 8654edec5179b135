"""The example agent does what its README says."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from portside.agent.config import load_config
from portside.executor.execute import Execution
from portside.executor.load import load_graphs
from portside.executor.requests import RunRequest

FOLDER = Path(__file__).parents[2] / "examples" / "hello-agent"


@pytest.fixture
def say() -> Iterator[Any]:
    path = list(sys.path)
    graphs = load_graphs(load_config(FOLDER / "langgraph.json").project).attach(InMemorySaver())

    async def run(text: str, thread_id: str, **options: Any) -> list[tuple[str, Any]]:
        request = RunRequest(
            graph_id="agent",
            input={"messages": [{"role": "user", "content": text}]},
            config={"configurable": {"thread_id": thread_id}},
            **options,
        )

        execution = Execution(graphs, request)
        events = [(event, json.loads(data)) async for event, data in execution]
        return [*events, ("end", json.loads(execution.outcome.values)["messages"])]

    yield run
    sys.path[:] = path
    sys.modules.pop("agent", None)


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("hello", "Hello, I am a small agent! Ask me a sum, such as 6*7, or tell me your name."),
        ("what is 6*7", "I worked it out: 6*7 = 42."),
        ("and -(2 + 3) / 4, please?", "I worked it out: (2 + 3) / 4 = 1.25."),
        ("1 / 0", "I worked it out: 1 / 0 has no result: it divides by zero."),
        ("9 ** 9 ** 9", "I worked it out: 9 ** 9 ** 9 is not a sum I can do."),
        ("who am I?", "You have not told me yet. Try: my name is Ada."),
    ],
)
async def test_replies(say, text, reply):
    assert (await say(text, str(uuid4())))[-1][1][-1]["content"] == reply


async def test_a_sum_goes_through_the_tool(say):
    events = await say("what is 6*7", str(uuid4()), stream_modes=["updates"])
    assert [list(data) for event, data in events if event == "updates"] == [["respond"], ["tools"], ["respond"]]
    assert events[0][1]["respond"]["messages"][0]["tool_calls"][0]["args"] == {"expression": "6*7"}
    assert events[1][1]["tools"]["messages"][0]["content"] == "6*7 = 42"


async def test_a_name_is_remembered_in_its_thread_only(say):
    thread_id = str(uuid4())
    assert (await say("my name is Ada", thread_id))[-1][1][-1]["content"].startswith("Nice to meet you, Ada!")
    assert (await say("hello", thread_id))[-1][1][-1]["content"].startswith("Hello again, Ada!")
    assert (await say("who am I?", thread_id))[-1][1][-1]["content"] == "You are Ada."
    assert "not told me" in (await say("who am I?", str(uuid4())))[-1][1][-1]["content"]


async def test_the_answer_arrives_word_by_word(say):
    events = await say("hello", str(uuid4()), stream_modes=["messages-tuple"])
    pieces = [data[0]["content"] for event, data in events if event == "messages"]
    assert pieces[:4] == ["Hello,", " I", " am", " a"]
