"""An agent that needs no model key: it greets you, remembers your name and does sums.

The graph is that of any agent with tools: a model that answers or asks for a tool, and a node that runs what it asked
for. Only the model is a stand-in. `PocketModel` finds its answers with a few patterns and streams them word by word, as
a real one does; put another chat model in its place and nothing else changes.
"""

import ast
import asyncio
import operator
import re
from collections.abc import AsyncIterator

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

NAME = re.compile(r"\b(?:my name is|call me)\s+([\w'-]+)", re.IGNORECASE)
ASKS_NAME = re.compile(r"\b(?:what(?:'s| is) my name|who am i)\b", re.IGNORECASE)
SUM = re.compile(r"[\d(][\d\s.()*/%+-]*[*/%+-][\d\s.()*/%+-]*[\d)]")
SIGNS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


def evaluate(node: ast.expr) -> float:
    """Work out a parsed sum; only numbers and the four (and a half) basic operations are allowed."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in SIGNS:
            return SIGNS[type(sign)](evaluate(left), evaluate(right))

    raise ValueError


@tool
def calculate(expression: str) -> str:
    """Work out an arithmetic expression such as 6*7 or (2 + 3) / 4."""
    try:
        return f"{expression} = {evaluate(ast.parse(expression[:200], mode='eval').body)}"
    except ZeroDivisionError:
        return f"{expression} has no result: it divides by zero"
    except (SyntaxError, ValueError, OverflowError):
        return f"{expression} is not a sum I can do"


def answer(messages: list[BaseMessage]) -> AIMessage:
    """Decide what to say: the result of a tool, a call of a tool, or something friendly."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(f"I worked it out: {last.text}.")

    if found := SUM.search(last.text):
        arguments = {"expression": found[0].strip()}
        return AIMessage("", tool_calls=[{"name": "calculate", "args": arguments, "id": f"call_{len(messages)}"}])

    told = [
        found[1] for message in messages if isinstance(message, HumanMessage) if (found := NAME.search(message.text))
    ]

    if NAME.search(last.text):
        return AIMessage(f"Nice to meet you, {told[-1]}! I will remember your name in this thread.")
    if ASKS_NAME.search(last.text):
        return AIMessage(f"You are {told[-1]}." if told else "You have not told me yet. Try: my name is Ada.")

    greeting = f"Hello again, {told[-1]}!" if told else "Hello, I am a small agent!"
    return AIMessage(f"{greeting} Ask me a sum, such as 6*7, or tell me your name.")


class PocketModel(BaseChatModel):
    """A chat model that fits in a pocket: no key, no network, no surprises."""

    @property
    def _llm_type(self) -> str:
        return "pocket"

    def _generate(self, messages: list[BaseMessage], *_args, **_kwargs) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=answer(messages))])

    async def _astream(self, messages: list[BaseMessage], *_args, **_kwargs) -> AsyncIterator[ChatGenerationChunk]:
        message = answer(messages)
        if message.tool_calls:
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_calls=message.tool_calls))

        for word in re.findall(r"\s*\S+", message.text):
            await asyncio.sleep(0.02)  # real models take their time too
            yield ChatGenerationChunk(message=AIMessageChunk(word))


model = PocketModel()


async def respond(state: MessagesState) -> dict[str, list[BaseMessage]]:
    """Let the model answer, or ask for a tool."""
    return {"messages": [await model.ainvoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("respond", respond)
builder.add_node("tools", ToolNode([calculate]))
builder.add_edge(START, "respond")
builder.add_conditional_edges("respond", tools_condition)
builder.add_edge("tools", "respond")
graph = builder.compile()
