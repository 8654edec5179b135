from typing import TypedDict

from langgraph.graph import StateGraph


class State(TypedDict, total=False):
    name: str
    answer: str


def greet(state: State) -> State:
    return {"answer": f"Good day, {state['name']}, from Python"}


graph = StateGraph(State).add_node(greet).add_edge("__start__", "greet").compile()
