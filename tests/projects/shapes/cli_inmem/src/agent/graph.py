from dataclasses import dataclass
from typing import TypedDict

from langgraph.graph import StateGraph
from langgraph.runtime import Runtime


class Context(TypedDict, total=False):
    tone: str


@dataclass
class State:
    text: str = "example"


async def call_model(state: State, runtime: Runtime[Context]) -> dict:
    return {"text": f"{(runtime.context or {}).get('tone', 'calm')}: {state.text}"}


graph = (
    StateGraph(State, context_schema=Context)
    .add_node(call_model)
    .add_edge("__start__", "call_model")
    .compile(name="New Graph")
)
