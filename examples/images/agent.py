"""An agent that gets images in messages, answers about them, and remembers them in the thread.

A message has a list of blocks: a text, and images as base64 or by an address. `content_blocks` reads the forms of all
providers as one. A real model looks at the image; the rule reads the size of a PNG from its first bytes.
"""

import base64
import struct

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph

from model import choose_model

PROMPT = SystemMessage("You answer questions about the images in this conversation.")
PNG = b"\x89PNG\r\n\x1a\n"


async def respond(state: MessagesState) -> dict[str, list[BaseMessage]]:
    """Let the model answer. It sees all images of the thread, because they are part of its messages."""
    return {"messages": [await model.ainvoke([PROMPT, *state["messages"]])]}


def answer_by_rule(messages: list[BaseMessage]) -> AIMessage:
    """Describe the newest image of the conversation."""
    images = [block for message in messages for block in message.content_blocks if block["type"] == "image"]
    if not images:
        return AIMessage("Send me an image.")

    newest = images[-1]
    if "base64" not in newest:
        return AIMessage("The image is elsewhere. I only look at images that are part of the message.")

    return AIMessage(describe(base64.b64decode(newest["base64"]), len(images)))


def describe(image: bytes, number: int) -> str:
    """Describe an image: a PNG has its width and height after 16 bytes."""
    if not image.startswith(PNG) or len(image) < 24:
        return f"Image {number} is no PNG; it has {len(image)} bytes."

    width, height = struct.unpack(">II", image[16:24])
    return f"Image {number} is a PNG of {width} by {height} pixels."


model = choose_model(answer_by_rule)
graph = StateGraph(MessagesState).add_node("respond", respond).add_edge(START, "respond").compile()
