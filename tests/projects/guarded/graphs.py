"""Graphs that tell who they run for."""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from langgraph_sdk import get_client

try:
    from langgraph_sdk.errors import NotFoundError
    from langgraph_sdk.runtime import ServerRuntime
except ImportError:  # The oldest SDK that the server takes has neither.
    from httpx import HTTPStatusError as NotFoundError

    ServerRuntime = object


class Reported(TypedDict, total=False):
    text: str
    reported: dict[str, Any]


def tell(_state: Reported, config: RunnableConfig) -> dict:
    configurable = config["configurable"]
    user = configurable["langgraph_auth_user"]
    reported = {
        "identity": user.identity,
        "email": user.get("email"),
        "permissions": configurable["langgraph_auth_permissions"],
        "user_id": configurable["user_id"],
        "auth_user_id": configurable["langgraph_auth_user_id"],
        "keys": sorted(name for name in configurable if "api-key" in name.lower()),
    }

    return {"reported": reported}


async def wait(_state: Reported) -> dict:
    await asyncio.sleep(600)
    return {}


def ask(_state: Reported) -> dict:
    interrupt("Shall I?")
    return {}


def ask_again(_state: Reported) -> dict:
    interrupt("Really?")
    return {}


echo = StateGraph(Reported).add_node("tell", tell).add_edge(START, "tell").compile()
patient = StateGraph(Reported).add_node("wait", wait).add_edge(START, "wait").compile()

asking = StateGraph(Reported).add_node("ask", ask).add_node("again", ask_again)
asking = asking.add_edge(START, "ask").add_edge(START, "again").compile()


class Look(TypedDict, total=False):
    thread_id: str
    found: Annotated[list[str], operator.add]
    reported: dict[str, Any]


async def look(state: Look) -> Look:
    """What the server shows to the graph itself."""
    client = get_client()
    try:
        await client.threads.get(state["thread_id"])
    except NotFoundError:
        return {"found": ["hidden"]}

    return {"found": [state["thread_id"]]}


def look_from_a_thread(state: Look) -> Look:
    return asyncio.run(look(state))


async def delegate(_state: Look) -> Look:
    client = get_client()
    mine = await client.threads.create()
    answer = await client.runs.wait(mine["thread_id"], "echo", input={})
    return {"reported": {**answer["reported"], "owner": mine["metadata"].get("owner")}}


looking = StateGraph(Look).add_node("look", look).add_node("thread", look_from_a_thread).add_node("delegate", delegate)
looking = looking.add_edge(START, "look").add_edge("look", "thread").add_edge("thread", "delegate").compile()


def made_for(runtime: ServerRuntime) -> Any:
    """A graph whose only node bears the name of the user it is made for."""
    name = f"for_{runtime.ensure_user().identity}"
    return StateGraph(Reported).add_node(name, lambda _: {}).add_edge(START, name).compile()
