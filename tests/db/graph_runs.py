"""Small graphs, and a runner that executes them with checkpoints in a real Postgres."""

import json
import operator
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from portside.agent.local_graphs import PostgresSaver
from portside.executor.execute import Execution
from portside.executor.load import Graphs
from portside.executor.requests import Outcome, RunRequest
from portside.kernel.db import Database


class Text(TypedDict, total=False):
    text: str
    decision: str


class Words(TypedDict):
    foo: Annotated[list[str], operator.add]


def graph(state: type, *steps: Any, **options: Any) -> Any:
    """A graph of one node after another, each named like its function."""
    builder = StateGraph(state, **options)
    before = START
    for step in steps:
        builder.add_node(step.__name__, step)
        builder.add_edge(before, step.__name__)
        before = step.__name__

    return builder.compile()


def echo(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"echo: {state['messages'][-1].content}")]}


def draft(state: Text) -> Text:
    return {"text": state["text"] + "!"}


def ask(state: Text) -> Text:
    return {"decision": interrupt({"question": "approve?", "text": state["text"]})}


def fin(state: Text) -> Text:
    return {"text": "done:" + state["decision"]}


def boom(_: Text) -> Text:
    raise ValueError("kaboom")


class Talker(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "talker"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("one two three"))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for word in ("one", " two", " three"):
            yield ChatGenerationChunk(message=AIMessageChunk(word))


async def talk(state: MessagesState) -> dict[str, Any]:
    reply = await Talker().ainvoke(state["messages"])
    return {"messages": [reply, ToolMessage("12", tool_call_id="call")]}


def pre(_: Words) -> dict[str, Any]:
    return {"foo": ["pre"]}


def sub1(_: Words) -> dict[str, Any]:
    get_stream_writer()({"at": "sub1"})
    return {"foo": ["sub1"]}


def sub2(_: Words) -> dict[str, Any]:
    return {"foo": ["sub2"]}


def parent() -> Any:
    builder = StateGraph(Words)
    builder.add_node("pre", pre)
    builder.add_node("child", graph(Words, sub1, sub2))
    builder.add_edge(START, "pre")
    builder.add_edge("pre", "child")

    return builder.compile()


class GraphRunner:
    """Executes runs of some graphs on one thread."""

    def __init__(self, saver: PostgresSaver, graphs: dict[str, Any]) -> None:
        self.graphs = Graphs(graphs, {}).attach(saver)
        self.thread_id = str(uuid4())

    def request(self, graph_id: str, **fields: Any) -> RunRequest:
        config = {
            "configurable": {"thread_id": self.thread_id, "run_id": str(uuid4()), **fields.pop("configurable", {})}
        }
        return RunRequest(graph_id=graph_id, config={**config, **fields.pop("config", {})}, **fields)

    async def run(self, graph_id: str, **fields: Any) -> tuple[list[tuple[str, Any]], Outcome]:
        execution = Execution(self.graphs, self.request(graph_id, **fields))
        events = [(event, json.loads(data)) async for event, data in execution]
        assert execution.outcome is not None
        error = execution.outcome.error
        return events if error is None else [*events, ("error", error)], execution.outcome


@asynccontextmanager
async def graph_runners(url: str) -> AsyncIterator[Callable[..., GraphRunner]]:
    """Yield a function that makes runners; they share one checkpointer."""
    db = await Database.connect(url, max_size=5, schema="portside")
    saver = PostgresSaver(db)
    yield lambda **graphs: GraphRunner(saver, graphs)
    await db.close()


def names(events: list[tuple[str, Any]]) -> list[str]:
    return [event for event, _ in events]
