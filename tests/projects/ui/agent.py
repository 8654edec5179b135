"""A graph that shows the weather with a component of its own."""

from collections.abc import Sequence
from typing import Annotated, TypedDict

from langgraph.graph import StateGraph
from langgraph.graph.ui import AnyUIMessage, push_ui_message, ui_message_reducer


class State(TypedDict):
    city: str
    ui: Annotated[Sequence[AnyUIMessage], ui_message_reducer]


def show(state: State) -> dict[str, str]:
    push_ui_message("weather", {"city": state["city"]})
    return {"city": state["city"]}


builder = StateGraph(State)
builder.add_node(show)
builder.add_edge("__start__", "show")
graph = builder.compile()
