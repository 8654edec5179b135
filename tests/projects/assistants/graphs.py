"""Graphs to be described and configured: each shows one form that an export, a context or a subgraph may take."""

import asyncio
import operator
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from pydantic import BaseModel, Field

try:
    from langgraph_sdk.runtime import ServerRuntime
except ImportError:  # The oldest SDK that the server takes has none.
    ServerRuntime = object


class Words(TypedDict):
    """What was said."""

    foo: Annotated[list[str], operator.add]


@dataclass
class Model:
    model: str = "small"
    heat: float = 0.5


class Limits(BaseModel):
    depth: int = Field(3, description="How far to go")


class Person(TypedDict, total=False):
    who: str


def say(*words: str):
    def node(_state: Words) -> dict:
        return {"foo": list(words)}

    return node


def line(*names: str, schema: type = Words, **options):
    builder = StateGraph(schema, **options)
    for before, name in zip((START, *names), names, strict=False):
        builder.add_node(name, say(name))
        builder.add_edge(before, name)

    return builder.compile()


def report(_state: Words, config: RunnableConfig, runtime: Runtime[Model]) -> dict:
    configurable = config["configurable"]
    return {
        "foo": [
            f"model={runtime.context.model}",
            f"heat={runtime.context.heat}",
            f"mirror={configurable.get('model')}",
            f"tags={sorted(config.get('tags') or [])}",
            f"limit={config.get('recursion_limit')}",
        ]
    }


configured = StateGraph(Words, context_schema=Model).add_node("report", report).add_edge(START, "report").compile()

limited = line("go", context_schema=Limits)
personal = line("go", context_schema=Person)
chat = line("go", schema=MessagesState)

middle = StateGraph(Words).add_node("inner", line("deep1", "deep2")).add_edge(START, "inner").compile()
parent = (
    StateGraph(Words)
    .add_node("pre", say("pre"))
    .add_node("child", line("sub1", "sub2"))
    .add_node("nest", middle)
    .add_edge(START, "pre")
    .add_conditional_edges("pre", lambda _: "yes", {"yes": "child", "no": END})
    .add_edge("child", "nest")
    .compile()
)


class Socket:
    """Has no form in JSON."""


class Strange(TypedDict):
    socket: Socket


class Answer(TypedDict):
    text: str


strange = (
    StateGraph(Strange, input_schema=Answer, context_schema=Model).add_node("go", say()).add_edge(START, "go").compile()
)

callbacks = line("go", context_schema=dataclass(type("Hooks", (), {"__annotations__": {"hook": Callable[[], None]}})))


async def wait(_state: Words) -> dict:
    await asyncio.Event().wait()
    return {}


endless = StateGraph(Words).add_node("wait", wait).add_edge(START, "wait").compile()


@entrypoint()
async def work(inputs: Answer) -> str:
    return inputs["text"]


def by_config(config: dict):
    return line(f"for_{config['configurable'].get('who', 'nobody')}")


async def by_runtime(runtime: ServerRuntime):
    return line(runtime.access_context)


@asynccontextmanager
async def managed(config: dict, runtime: ServerRuntime):
    yield line(runtime.access_context, f"for_{config['configurable'].get('who', 'nobody')}", context_schema=Person)


@contextmanager
def held():
    yield line("held")


def failing(config: dict):
    return line(config["configurable"]["nowhere"])
