"""An agent whose tools come from an MCP server.

The agent starts the server as a process and asks it for its tools, so the tools are defined in one place and can be in
any language. `make_graph` is a factory: the process lives for as long as the agent server uses the graph.
"""

import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from model import call_tool, choose_model

PROMPT = SystemMessage("You answer questions about a shop's stock with your tools.")
QUESTION = re.compile(r"how many (\w+?)s?\b", re.IGNORECASE)
# A server elsewhere has {"transport": "streamable_http", "url": "https://…/mcp"} instead of a command.
SERVERS = {
    "stock": {
        "transport": "stdio",
        "command": sys.executable,
        "args": [str(Path(__file__).with_name("server.py"))],
    }
}


@asynccontextmanager
async def make_graph() -> AsyncIterator[CompiledStateGraph]:
    """Make the graph with the tools of the MCP server, which runs until the end of the block."""
    async with MultiServerMCPClient(SERVERS).session("stock") as session:
        tools = await load_mcp_tools(session)
        model = choose_model(answer_by_rule).bind_tools(tools)

        async def respond(state: MessagesState) -> dict[str, list[BaseMessage]]:
            return {"messages": [await model.ainvoke([PROMPT, *state["messages"]])]}

        builder = StateGraph(MessagesState)
        builder.add_node("respond", respond)
        builder.add_node("tools", ToolNode(tools))
        builder.add_edge(START, "respond")
        builder.add_conditional_edges("respond", tools_condition)
        builder.add_edge("tools", "respond")
        yield builder.compile()


def answer_by_rule(messages: list[BaseMessage]) -> AIMessage:
    """Count what the question names, or list what there is."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(f"The stock says: {last.text}")

    if question := QUESTION.search(last.text):
        return call_tool("count_items", item=question[1].lower())

    return call_tool("list_items")
