from typing import TypedDict


class State(TypedDict):
    text: str
