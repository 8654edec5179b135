"""An agent that keeps notes for its users. It knows who calls, because the server authenticated them.

The graph itself has to use the user's own part of the store: the rules of auth.py are about requests from outside.
"""

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime


async def keep_note(state: MessagesState, config: RunnableConfig, runtime: Runtime) -> dict[str, list[AIMessage]]:
    """Store what the user says after "note:", and list the notes of this user."""
    user = config["configurable"]["langgraph_auth_user"].identity
    namespace = (user, "notes")

    text = state["messages"][-1].text
    if text.startswith("note:"):
        note = text.removeprefix("note:").strip()
        await runtime.store.aput(namespace, note, {"text": note})

    items = await runtime.store.asearch(namespace)
    notes = ", ".join(sorted(item.value["text"] for item in items))
    return {"messages": [AIMessage(f"Notes of {user}: {notes or 'none'}")]}


graph = StateGraph(MessagesState).add_node("keep_note", keep_note).add_edge(START, "keep_note").compile()
