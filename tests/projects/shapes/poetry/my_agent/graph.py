from langgraph.graph import START, MessagesState, StateGraph

from my_agent.prompts import REPLY


def answer(state: MessagesState) -> dict:
    return {"messages": [("ai", REPLY.format(state["messages"][-1].content))]}


graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
