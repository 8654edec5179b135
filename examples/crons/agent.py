"""An agent that nobody asks: a cron runs it, and it writes a digest of the notes that came since its last run.

Notes come from anywhere, as items of the store. The result is an item too, and the last message of the run.
"""

from datetime import UTC, datetime

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime

from model import choose_model

NOTES = ("notes",)
DIGESTS = ("digests",)
PROMPT = SystemMessage("Sum these notes up in one sentence.")


async def write_digest(state: MessagesState, runtime: Runtime) -> dict[str, list[BaseMessage]]:
    """Sum up the notes, store the digest, and remove the notes that it is about."""
    notes = sorted(await runtime.store.asearch(NOTES, limit=100), key=lambda note: note.created_at)
    if not notes:
        return {"messages": [AIMessage("Nothing new.")]}

    texts = "\n".join(note.value["text"] for note in notes)
    digest = await model.ainvoke([PROMPT, *state["messages"], ("user", texts)])

    # In this order: if the run ends in between, the next one writes the notes again rather than never.
    written_at = datetime.now(UTC).isoformat()
    await runtime.store.aput(DIGESTS, written_at, {"text": digest.text, "notes": len(notes)})
    for note in notes:
        await runtime.store.adelete(NOTES, note.key)

    return {"messages": [digest]}


def answer_by_rule(messages: list[BaseMessage]) -> AIMessage:
    """Name each note."""
    notes = messages[-1].text.splitlines()
    return AIMessage(f"{len(notes)} notes: {'; '.join(notes)}.")


model = choose_model(answer_by_rule)
graph = StateGraph(MessagesState).add_node("write_digest", write_digest).add_edge(START, "write_digest").compile()
