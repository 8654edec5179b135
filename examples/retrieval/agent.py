"""An agent that answers from documents: it searches the store, and says where the answer comes from.

The server embeds what is written to the store and searches it, because langgraph.json has `store.index`. The graph only
asks. `load.py` brings the documents.
"""

from typing import TypedDict

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime

from model import choose_model

NAMESPACE = ("documents",)
# Below this, a document shares hardly a word with the question.
LEAST_SCORE = 0.1


class Passage(TypedDict):
    """A document that was found."""

    source: str
    text: str


class State(MessagesState):
    """The conversation, and what was found for its last question."""

    passages: list[Passage]


async def retrieve(state: State, runtime: Runtime) -> dict[str, list[Passage]]:
    """Find the documents that are nearest to the last question, the best one first."""
    items = await runtime.store.asearch(NAMESPACE, query=state["messages"][-1].text, limit=3)
    near = [item for item in items if (item.score or 0) >= LEAST_SCORE]

    return {"passages": [{"source": item.key, "text": item.value["text"]} for item in near]}


async def respond(state: State) -> dict[str, list[BaseMessage]]:
    """Let the model answer from the passages."""
    passages = "\n".join(f"[{passage['source']}] {passage['text']}" for passage in state["passages"])
    prompt = SystemMessage(f"Answer from these passages alone, and name the source in brackets.\n{passages}")

    return {"messages": [await model.ainvoke([prompt, *state["messages"]])]}


def answer_by_rule(messages: list[BaseMessage]) -> AIMessage:
    """Quote the best passage."""
    _instruction, *passages = messages[0].text.splitlines()
    if not passages:
        return AIMessage("No document says anything about that.")

    source, _, text = passages[0].partition("] ")
    return AIMessage(f"{text} {source}]")


model = choose_model(answer_by_rule)

builder = StateGraph(State)
builder.add_node("retrieve", retrieve)
builder.add_node("respond", respond)
builder.add_edge(START, "retrieve")
builder.add_edge("retrieve", "respond")
graph = builder.compile()
