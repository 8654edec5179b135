"""An agent that asks a person before it does something that cannot be undone.

It refunds orders. Small amounts it refunds at once. For a large one the tool interrupts the run with a question; the
thread waits, for minutes or weeks, until somebody resumes it with an answer.
"""

import re

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

from model import call_tool, choose_model

LIMIT = 50
PROMPT = SystemMessage("You refund orders with the tool `refund`. Say what happened in one sentence.")
REQUEST = re.compile(r"refund (\d+(?:\.\d+)?) for order (\w+)", re.IGNORECASE)


@tool
def refund(order: str, amount: float) -> str:
    """Refund an amount of an order. A person decides about large amounts."""
    if amount > LIMIT:
        # When the answer arrives, the tool begins again and `interrupt` returns the answer. Nothing above this line
        # may have an effect, or it would happen twice.
        answer = interrupt({"question": f"Refund {amount:g} for order {order}?", "order": order, "amount": amount})

        if not answer["approved"]:
            return f"not refunded: {answer.get('reason', 'a person refused')}"

    return f"refunded {amount:g} for order {order}"


def answer_by_rule(messages: list[BaseMessage]) -> AIMessage:
    """Call the tool for a sentence such as "refund 80 for order 12", and report its result."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(f"Done: {last.text}.")

    if request := REQUEST.search(last.text):
        return call_tool("refund", amount=float(request[1]), order=request[2])

    return AIMessage("Tell me what to refund, for example: refund 80 for order 12")


model = choose_model(answer_by_rule).bind_tools([refund])


async def respond(state: MessagesState) -> dict[str, list[BaseMessage]]:
    """Let the model answer, or ask for the tool."""
    return {"messages": [await model.ainvoke([PROMPT, *state["messages"]])]}


builder = StateGraph(MessagesState)
builder.add_node("respond", respond)
builder.add_node("tools", ToolNode([refund]))
builder.add_edge(START, "respond")
builder.add_conditional_edges("respond", tools_condition)
builder.add_edge("tools", "respond")
graph = builder.compile()
