"""An agent that sorts tickets by topic. Other programs send them to the routes in web.py."""

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph

from model import choose_model

PROMPT = SystemMessage("Say in one word what the ticket is about: delivery, payment or other.")
WORDS = {"delivery": ("parcel", "arrive", "deliver"), "payment": ("invoice", "paid", "charge")}


async def sort_ticket(state: MessagesState) -> dict[str, list[BaseMessage]]:
    """Let the model name the topic."""
    return {"messages": [await model.ainvoke([PROMPT, *state["messages"]])]}


def answer_by_rule(messages: list[BaseMessage]) -> AIMessage:
    """Name the topic that has a word of the ticket."""
    ticket = messages[-1].text.lower()
    topics = [topic for topic, words in WORDS.items() if any(word in ticket for word in words)]
    return AIMessage(topics[0] if topics else "other")


model = choose_model(answer_by_rule)
graph = StateGraph(MessagesState).add_node("sort_ticket", sort_ticket).add_edge(START, "sort_ticket").compile()
