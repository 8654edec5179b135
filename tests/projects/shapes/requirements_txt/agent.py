from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from slugify import slugify


class State(TypedDict):
    text: str


def answer(state: State) -> dict:
    return {"text": slugify(state["text"])}


builder = StateGraph(State)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
builder.add_edge("answer", END)
graph = builder.compile()
