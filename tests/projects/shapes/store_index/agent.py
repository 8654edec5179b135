from typing import TypedDict

from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore


class State(TypedDict):
    text: str


async def answer(state: State, *, store: BaseStore) -> dict:
    for text in ("green tea", "black coffee"):
        await store.aput(("drinks",), text.replace(" ", "-"), {"text": text})

    found = await store.asearch(("drinks",), query=state["text"], limit=1)
    return {"text": found[0].value["text"]}


graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").compile()
