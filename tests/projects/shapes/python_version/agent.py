import platform
from typing import TypedDict

from langgraph.graph import START, StateGraph


class State(TypedDict):
    text: str


def answer(_: State) -> dict:
    return {"text": f"Python {platform.python_version()}"}


graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").compile()
