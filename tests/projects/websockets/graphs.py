"""A graph that does nothing, beside an application."""

from langgraph.graph import START, StateGraph

child = StateGraph(dict).add_node("stay", lambda _state: {}).add_edge(START, "stay").compile()
