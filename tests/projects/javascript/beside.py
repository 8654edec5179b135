"""Graphs in Python, beside those in JavaScript."""

from typing import Any

from langgraph.graph import START, MessagesState, StateGraph
from langgraph_sdk import get_client
from typing_extensions import TypedDict


async def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [{"role": "ai", "content": f"Python: {state['messages'][-1].content}"}]}


python = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


class Called(TypedDict):
    said: str


async def call(_state: Called) -> Called:
    given = {"messages": [{"role": "user", "content": "from Python"}]}
    values: Any = await get_client().runs.wait(None, "echo", input=given)
    return {"said": values["messages"][-1]["content"]}


python_caller = StateGraph(Called).add_node("call", call).add_edge(START, "call").compile()
