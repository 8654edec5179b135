from typing import TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph


class State(TypedDict):
    text: str


def answer(state: State, config: RunnableConfig) -> dict:
    configurable = config["configurable"]
    user = configurable["langgraph_auth_user"]
    return {"text": f"{state['text']}, {user['identity']}: {configurable['langgraph_auth_permissions']}"}


graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").compile()
