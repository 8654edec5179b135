from importlib.metadata import version
from typing import TypedDict

from langgraph.graph import START, StateGraph


class State(TypedDict):
    text: str


async def answer(_: State) -> dict:
    return {"text": f"langgraph {version('langgraph')}, langgraph-sdk {version('langgraph-sdk')}"}


graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").compile()
