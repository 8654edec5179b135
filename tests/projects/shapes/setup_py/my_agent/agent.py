from langgraph.func import entrypoint, task
from slugify import slugify


@task
def shorten(text: str) -> str:
    return slugify(text)


@entrypoint()
def agent(state: dict) -> dict:
    return {"text": shorten(state["text"]).result()}
