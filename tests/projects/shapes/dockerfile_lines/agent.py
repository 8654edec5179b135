from langchain_core.language_models import FakeListChatModel
from langgraph.graph import START, MessagesState, StateGraph
from slugify import slugify

model = FakeListChatModel(responses=[slugify("I am a model")])


async def answer(state: MessagesState) -> dict:
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
