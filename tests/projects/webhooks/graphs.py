"""Graphs whose ends call webhooks."""

import asyncio
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def answer(state: MessagesState) -> dict:
    if state["messages"][-1].content == "wait":
        await asyncio.Event().wait()
    return {"messages": [("ai", "hello")]}


def explode(_state: MessagesState) -> dict:
    raise ValueError("kaboom")


def ask(_state: MessagesState) -> dict:
    return {"messages": [("ai", interrupt("may I?"))]}


echo = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
boom = StateGraph(MessagesState).add_node("explode", explode).add_edge(START, "explode").compile()
approval = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()


received: list[Any] = []


async def take(request: Request) -> JSONResponse:
    received.append([request.url.query, await request.json()])
    return JSONResponse({})


async def show(_request: Request) -> JSONResponse:
    return JSONResponse(received)


app = Starlette(routes=[Route("/own/hook", take, methods=["POST"]), Route("/own/received", show)])
