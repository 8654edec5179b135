"""Graphs whose events the tests of streams look at: each shows one kind of event."""

import asyncio
import operator
from pathlib import Path
from typing import Annotated, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt


async def answer(state: MessagesState) -> dict:
    return {"messages": [AIMessage(f"echo: {state['messages'][-1].content}")]}


echo = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


class Draft(TypedDict):
    text: str
    decision: str


def draft(state: Draft) -> dict:
    return {"text": state["text"] + "!"}


def ask(state: Draft) -> dict:
    return {"decision": interrupt({"question": "approve?", "text": state["text"]})}


def finish(state: Draft) -> dict:
    return {"text": f"done:{state['decision']}"}


approval = (
    StateGraph(Draft)
    .add_node("draft", draft)
    .add_node("ask", ask)
    .add_node("fin", finish)
    .add_edge(START, "draft")
    .add_edge("draft", "ask")
    .add_edge("ask", "fin")
    .compile()
)


async def talk(_state: MessagesState) -> dict:
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
    return {"messages": [await model.ainvoke("talk")]}


chat = StateGraph(MessagesState).add_node("talk", talk).add_edge(START, "talk").compile()


@tool
def look_up(place: str) -> str:
    """Look up the weather."""
    return f"rain in {place}"


def call(_state: MessagesState) -> dict:
    calls = [{"name": "look_up", "args": {"place": "Bergen"}, "id": "call-1", "type": "tool_call"}]
    return {"messages": [AIMessage("", tool_calls=calls)]}


agent = (
    StateGraph(MessagesState)
    .add_node("call", call)
    .add_node("tools", ToolNode([look_up]))
    .add_edge(START, "call")
    .add_edge("call", "tools")
    .compile()
)


class Trail(TypedDict):
    foo: Annotated[list[str], operator.add]
    asks: bool


def step(name: str):
    def run(_state: Trail) -> dict:
        return {"foo": [name]}

    return run


def note(state: Trail) -> dict:
    get_stream_writer()({"name": "progress", "payload": {"step": len(state["foo"])}})
    get_stream_writer()("plain")
    return {"foo": ["sub1"]}


def ask_below(state: Trail) -> dict:
    return {"foo": [f"sub2 {interrupt({'from': 'below'})}" if state.get("asks") else "sub2"]}


child = (
    StateGraph(Trail)
    .add_node("sub1", note)
    .add_node("sub2", ask_below)
    .add_edge(START, "sub1")
    .add_edge("sub1", "sub2")
    .compile()
)
parent = (
    StateGraph(Trail)
    .add_node("pre", step("pre"))
    .add_node("child", child)
    .add_edge(START, "pre")
    .add_edge("pre", "child")
    .compile()
)


class Gate(TypedDict):
    path: str
    done: Annotated[list[str], operator.add]


async def wait(state: Gate) -> dict:
    """Wait until the test opens the gate, which is a file."""
    while not Path(state["path"]).exists():  # noqa: ASYNC110, ASYNC240 - the gate is in another process
        await asyncio.sleep(0.01)
    return {"done": ["through"]}


gate = (
    StateGraph(Gate)
    .add_node("before", lambda _state: {"done": ["before"]})
    .add_node("wait", wait)
    .add_node("after", lambda _state: {"done": ["after"]})
    .add_edge(START, "before")
    .add_edge("before", "wait")
    .add_edge("wait", "after")
    .compile()
)


def explode(_state: Trail) -> dict:
    raise ValueError("kaboom")


boom = (
    StateGraph(Trail)
    .add_node("ok", step("ok"))
    .add_node("bad", explode)
    .add_edge(START, "ok")
    .add_edge("ok", "bad")
    .compile()
)


class Flood(TypedDict):
    pieces: int
    done: bool


async def pour(state: Flood) -> dict:
    """Write more than a reader's buffer holds, which must not keep the run from its end."""
    write = get_stream_writer()
    for _ in range(state["pieces"]):
        write("x" * 1_000_000)
        await asyncio.sleep(0)

    return {"done": True}


flood = StateGraph(Flood).add_node("pour", pour).add_edge(START, "pour").compile()


class Count(TypedDict):
    upto: int
    done: bool


async def count(state: Count) -> dict:
    """Write numbers, as fast as tokens never come."""
    write = get_stream_writer()
    for number in range(state["upto"]):
        write(number)
        if number % 100 == 0:
            await asyncio.sleep(0)

    return {"done": True}


counting = StateGraph(Count).add_node("count", count).add_edge(START, "count").compile()


class Ticks(TypedDict):
    upto: int
    pause_s: float


async def tick(state: Ticks) -> dict:
    """Write a number after each pause, for streams that must stay open for long."""
    for number in range(state["upto"]):
        get_stream_writer()(number)
        await asyncio.sleep(state["pause_s"])

    return {}


clock = StateGraph(Ticks).add_node("tick", tick).add_edge(START, "tick").compile()


class Long(TypedDict):
    count: int
    size: int


async def tell(state: Long) -> dict:
    """Write many small events without a pause."""
    write = get_stream_writer()
    for number in range(state["count"]):
        write({"number": number, "text": "x" * state["size"]})
        if number % 50 == 0:
            await asyncio.sleep(0)

    return {}


long = StateGraph(Long).add_node("tell", tell).add_edge(START, "tell").compile()


class Voice(BaseChatModel):
    """Speaks word for word; `reports` is how models of providers do it, that tell of each piece themselves."""

    words: tuple[str, ...] = ("Hello,", " wor", "ld!")
    reports: bool = False
    fails: bool = False
    piece_id: str | None = None

    @property
    def _llm_type(self) -> str:
        return "voice"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("".join(self.words)))])

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        for word in self.words:
            piece = ChatGenerationChunk(message=AIMessageChunk(word, id=self.piece_id))
            if self.reports and run_manager is not None:
                await run_manager.on_llm_new_token(word, chunk=piece)

            yield piece
            if self.fails:
                raise ValueError("lost its voice")


async def _heard(model: BaseChatModel) -> AIMessage:
    """Call a model the newest way and put its message together."""
    text = ""
    message_id = None

    async for event in await model.astream_events([], version="v3"):
        if event["event"] == "message-start":
            message_id = event["id"]
        elif event["event"] == "content-block-delta":
            text += event["delta"]["text"]

    return AIMessage(text, id=message_id)


async def speak(state: MessagesState) -> dict:
    """Call a model the way that the input names; what else is returned no model made."""
    match state["messages"][-1].content:
        case "events":
            said = await _heard(Voice())
        case "events, reported":
            said = await _heard(Voice(reports=True, piece_id="piece"))
        case "fails":
            said = await _heard(Voice(fails=True))
        case "astream":
            pieces = [piece async for piece in Voice().astream([])]
            said = pieces[0] + pieces[1] + pieces[2]
        case "two":
            one, two = await asyncio.gather(_heard(Voice(words=("a", "b"))), _heard(Voice(words=("c", "d"))))
            return {"messages": [one, two]}
        case _:
            said = await Voice().ainvoke([])

    asked = AIMessage("", tool_calls=[{"name": "look_up", "args": {}, "id": "c", "type": "tool_call"}])
    return {"messages": [said, asked, ToolMessage("rain", tool_call_id="c")]}


voice = StateGraph(MessagesState).add_node("speak", speak).add_edge(START, "speak").compile()


async def stage(state: MessagesState) -> dict:
    """Read another graph's events: a node finds in them what that graph wrote, and nothing else."""
    read = []
    answer = None

    async for mode, part in voice.astream({"messages": state["messages"]}, stream_mode=["custom", "values"]):
        if mode == "custom":
            read.append(part)
        else:
            answer = part["messages"]

    return {"messages": [*answer, AIMessage(f"read {read}")]}


staged = StateGraph(MessagesState).add_node("stage", stage).add_edge(START, "stage").compile()


class Steps(TypedDict):
    items: Annotated[list[str], operator.add]


def report(name: str):
    def run(_state: Steps) -> dict:
        write = get_stream_writer()
        write({"step": name, "phase": "start", "name": "progress"})
        answer = interrupt("Are we good?") if name == "ask" else name
        write({"step": name, "phase": "end", "name": "progress"})
        return {"items": [str(answer)]}

    return run


steps = (
    StateGraph(Steps)
    .add_node("plan", report("plan"))
    .add_node("ask", report("ask"))
    .add_edge(START, "plan")
    .add_edge("plan", "ask")
    .compile()
)

reports = (
    StateGraph(Steps)
    .add_node("plan", report("plan"))
    .add_node("check", report("check"))
    .add_edge(START, "plan")
    .add_edge("plan", "check")
    .compile()
)
