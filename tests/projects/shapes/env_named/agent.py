import os

from langgraph.graph import START, StateGraph
from pydantic import BaseModel

GREETING = os.environ["GREETING"]


class State(BaseModel):
    text: str


def answer(state: State) -> dict:
    return {"text": f"{GREETING}, {state.text} ({os.environ['TONE']})"}


graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").compile()
