"""Agents for the console's tests: a chat with a stand-in model, tools and questions, and a graph with a plain form.

What the model does depends on words of the last message: "weather", "mail", "twice", "slow", "fail", "large".
After "hold FILE" half of the answer comes, and the rest when the file is there.
"""

import asyncio
import operator
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import interrupt

WORDS = 60
SLOW_S = 0.25
ANSWER = "You said **{said}**.\n\n- one\n- two\n\n```python\nprint('{said}')\n```\n<script>alert(1)</script>"


class StandIn(BaseChatModel):
    """Streams what the last message asks for, word by word."""

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_reply(messages))])

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        yield from (ChatGenerationChunk(message=chunk) for chunk in _chunks(messages))

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        said = _said(messages)
        for number, chunk in enumerate(_chunks(messages)):
            await asyncio.sleep(SLOW_S if "slow" in said else 0.01)
            while number == WORDS // 2 and "hold" in said and not Path(said.split()[-1]).exists():  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.05)

            yield ChatGenerationChunk(message=chunk)


def _said(messages: list[BaseMessage]) -> str:
    human = next((each for each in reversed(messages) if isinstance(each, HumanMessage)), None)
    return human.text if human else ""


def _reply(messages: list[BaseMessage]) -> AIMessage:
    whole: AIMessageChunk | None = None
    for chunk in _chunks(messages):
        whole = chunk if whole is None else whole + chunk

    assert whole is not None
    return AIMessage(whole.content, tool_calls=whole.tool_calls)


def _chunks(messages: list[BaseMessage]) -> Iterator[AIMessageChunk]:
    said = _said(messages)
    if isinstance(messages[-1], ToolMessage):
        yield from _words(f"The tool says: {messages[-1].text}")
    elif "weather" in said:
        yield AIMessageChunk([{"type": "thinking", "thinking": "A tool knows the weather."}])
        arguments = '{"city": "Bergen"}'
        for index, part in enumerate((arguments[:9], arguments[9:])):
            call = {"name": "weather" if index == 0 else None, "args": part, "id": "call-1" if index == 0 else None}
            yield AIMessageChunk("", tool_call_chunks=[{**call, "index": 0, "type": "tool_call_chunk"}])
    elif "slow" in said or "hold" in said:
        yield from _words(" ".join(f"word{number}" for number in range(WORDS)))
    elif "large" in said:
        yield AIMessageChunk("x" * 5_000_000)
    else:
        yield from _words(ANSWER.format(said=said))


def _words(text: str) -> Iterator[AIMessageChunk]:
    for word in text.split(" "):
        yield AIMessageChunk(f"{word} ")


class Chat(MessagesState):
    """A conversation, and notes that people may edit."""

    notes: Annotated[list[str], operator.add]


class Tone(TypedDict, total=False):
    """How the agent speaks."""

    tone: Literal["plain", "formal"]
    signature: str


@tool
def weather(city: str) -> str:
    """Look up the weather."""
    return f"rain in {city}"


async def model(state: Chat, runtime: Runtime[Tone]) -> dict[str, Any]:
    """Answer with the stand-in model."""
    if "fail" in _said(state["messages"]):
        raise ValueError("the stand-in model fails on request")

    get_stream_writer()({"progress": "thinking"})
    answer = await StandIn().ainvoke(state["messages"])
    if signature := (runtime.context or {}).get("signature"):
        answer.content = f"{answer.content} — {signature}"

    return {"messages": [answer]}


def route(state: Chat) -> list[str]:
    """Send each kind of question to the nodes that ask it."""
    said = _said(state["messages"])
    if "mail" in said:
        return ["review"]

    return ["ask_who", "ask_when"] if "twice" in said else ["model"]


def review(_state: Chat) -> dict[str, Any]:
    """Ask a person about an action, in the form of human-in-the-loop middleware."""
    request = {"name": "send_mail", "args": {"to": "ada", "text": "Hello"}, "description": "Send this mail?"}
    allowed = ["approve", "edit", "reject", "respond"]
    decided = interrupt(
        {"action_requests": [request], "review_configs": [{"action_name": "send_mail", "allowed_decisions": allowed}]}
    )["decisions"][0]

    return {"messages": [AIMessage(f"decided: {decided['type']} {decided.get('edited_action', {}).get('args', '')}")]}


def ask_who(_state: Chat) -> dict[str, Any]:
    """Ask one free question."""
    return {"messages": [AIMessage(f"who: {interrupt({'question': 'Who?'})}")]}


def ask_when(_state: Chat) -> dict[str, Any]:
    """Ask another one at the same time."""
    return {"messages": [AIMessage(f"when: {interrupt('When?')}")]}


def after_model(state: Chat) -> str:
    """Call the tools that the model asks for."""
    return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END


chat = (
    StateGraph(Chat, context_schema=Tone)
    .add_node("model", model)
    .add_node("tools", ToolNode([weather]))
    .add_node("review", review)
    .add_node("ask_who", ask_who)
    .add_node("ask_when", ask_when)
    .add_conditional_edges(START, route, ["model", "review", "ask_who", "ask_when"])
    .add_conditional_edges("model", after_model, ["tools", END])
    .add_edge("tools", "model")
    .compile()
)


class Order(TypedDict, total=False):
    """An order, with a field of each kind."""

    name: str
    count: int
    price: float
    urgent: bool
    mood: Literal["calm", "busy"]
    tags: list[str]
    options: dict[str, Any]
    result: str


def prepare(state: Order) -> Order:
    """Count the fields."""
    return {"result": f"{state.get('count')} x {state.get('name')}, {state.get('mood')}, {state.get('tags')}"}


def finish(state: Order) -> Order:
    """End the order."""
    return {"result": f"done: {state.get('result')}"}


form = (
    StateGraph(Order)
    .add_node("prepare", prepare)
    .add_node("finish", finish)
    .add_edge(START, "prepare")
    .add_edge("prepare", "finish")
    .compile()
)
