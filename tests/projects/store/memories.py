"""Graphs that remember across threads, each reaching the store in another way."""

from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore, ToolNode
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

try:
    from langgraph_sdk.runtime import ServerRuntime
except ImportError:  # The oldest SDK that the server takes has none.
    ServerRuntime = object


class Memory(TypedDict, total=False):
    text: str
    found: list[str]


def graph(node: Any) -> Any:
    return StateGraph(Memory).add_node("node", node).add_edge(START, "node").compile()


async def remember(state: Memory, runtime: Runtime) -> Memory:
    await runtime.store.aput(("memories", "async"), "last", {"text": state["text"]})
    item = await runtime.store.aget(("memories", "async"), "last")
    hits = await runtime.store.asearch(("memories", "async"), query=state["text"])
    return {"found": [item.value["text"], *(f"{hit.key} {hit.score:.2f}" for hit in hits)]}


def remember_in_thread(state: Memory, *, store: BaseStore) -> Memory:
    store.put(("memories", "sync"), "last", {"text": state["text"]})
    hits = store.search(("memories", "sync"), query=state["text"])
    names = store.list_namespaces(prefix=("memories", "sync"))
    return {"found": [store.get(("memories", "sync"), "last").value["text"], hits[0].key, str(names)]}


def remember_by_get_store(state: Memory) -> Memory:
    get_store().put(("memories", "get_store"), "last", {"text": state["text"]})
    return {"found": [get_store().get(("memories", "get_store"), "last").value["text"]]}


async def call_sync_method(_: Memory, runtime: Runtime) -> Memory:
    return {"found": [str(runtime.store.get(("memories",), "last"))]}


@tool
def recall(key: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Recall a memory."""
    return store.get(("memories", "tool"), key).value["text"]


async def call_tool(state: MessagesState, runtime: Runtime) -> dict:
    await runtime.store.aput(("memories", "tool"), "tea", {"text": state["messages"][-1].content})
    return {"messages": [AIMessage("", tool_calls=[{"name": "recall", "args": {"key": "tea"}, "id": "1"}])]}


def factory(runtime: ServerRuntime) -> Any:
    async def node(state: Memory) -> Memory:
        await runtime.store.aput(("memories", "factory"), "last", {"text": state["text"]})
        return {"found": [(await runtime.store.aget(("memories", "factory"), "last")).value["text"]]}

    return graph(node)


async_node = graph(remember)
sync_node = graph(remember_in_thread)
by_get_store = graph(remember_by_get_store)
on_the_loop = graph(call_sync_method)
tool_graph = (
    StateGraph(MessagesState)
    .add_node("call", call_tool)
    .add_node("tools", ToolNode([recall]))
    .add_edge(START, "call")
    .add_edge("call", "tools")
    .compile()
)
