from pathlib import Path
from typing import TypedDict

import greeting
from langgraph.graph import START, StateGraph


class State(TypedDict):
    text: str


def answer(state: State) -> dict:
    words = Path(greeting.__file__).with_name("words.txt").read_text().strip()
    return {"text": f"{words} {state['text']}"}


graph = StateGraph(State).add_node(answer).add_edge(START, "answer").compile()
