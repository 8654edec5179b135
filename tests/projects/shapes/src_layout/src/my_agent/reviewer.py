from langgraph.graph import START, StateGraph

from my_agent.graph import graph as writer
from my_agent.state import State

graph = StateGraph(State).add_node("writer", writer).add_edge(START, "writer").compile()
