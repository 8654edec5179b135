import os

from langgraph.graph import START, StateGraph

from .state import State


def answer(state: State) -> dict:
    return {"text": f"{state['text']} ({os.environ['TONE']})"}


graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").compile()
