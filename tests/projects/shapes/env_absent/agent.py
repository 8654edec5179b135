import os
from dataclasses import dataclass

from dotenv import load_dotenv
from langgraph.graph import START, StateGraph

load_dotenv()


@dataclass
class State:
    text: str


def answer(state: State) -> dict:
    return {"text": f"{os.environ.get('GREETING', 'Hello')}, {state.text}"}


graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").compile()
