"""An agent for a chat page: it remembers what was said in its thread, and answers word by word."""

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph

from model import choose_model

PROMPT = SystemMessage("You chat with a visitor of a web page. Be brief.")


async def respond(state: MessagesState) -> dict[str, list[BaseMessage]]:
    """Let the model answer the whole conversation."""
    return {"messages": [await model.ainvoke([PROMPT, *state["messages"]])]}


def answer_by_rule(messages: list[BaseMessage]) -> AIMessage:
    """Say what the visitor said now, and before."""
    said = [message.text for message in messages if isinstance(message, HumanMessage)]
    if len(said) == 1:
        return AIMessage(f'You said "{said[0]}". Say something else, and I will remember both.')

    return AIMessage(f'You said "{said[-1]}", and before that "{said[-2]}".')


model = choose_model(answer_by_rule)
graph = StateGraph(MessagesState).add_node("respond", respond).add_edge(START, "respond").compile()
