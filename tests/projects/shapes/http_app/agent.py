from typing import TypedDict

from langgraph.graph import START, StateGraph
from shop import OPEN


class State(TypedDict):
    text: str


def answer(state: State) -> dict:
    return {"text": f"{state['text']}: {', '.join(OPEN)}"}


graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").compile()
