from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph

from .plain import new_builder

builder = new_builder()


async def make_graph(config: RunnableConfig) -> CompiledStateGraph:
    return new_builder().compile(name=config["configurable"].get("name", "unnamed"))


@asynccontextmanager
async def open_graph() -> AsyncIterator[CompiledStateGraph]:
    yield new_builder().compile()
