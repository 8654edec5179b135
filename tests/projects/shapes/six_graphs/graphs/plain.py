from typing import TypedDict

from langgraph.graph import START, StateGraph


class State(TypedDict):
    text: str


def answer(state: State) -> dict:
    return {"text": f"again: {state['text']}"}


def new_builder() -> StateGraph:
    return StateGraph(State).add_node("answer", answer).add_edge(START, "answer")


graph = new_builder().compile()
