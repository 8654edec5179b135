"""What a call of a tool gives: the final values of the graph as text and as structured content, or why not."""

from typing import Any

import msgspec

from portside.kernel.codec import load

ERROR, INTERRUPT = "__error__", "__interrupt__"
CANCELLED = "The call was cancelled before the agent was done."
ASKS = (
    "The agent is not done: it stopped to ask something, which {name} holds. It cannot be answered over MCP. Start the "
    "agent on a thread of its own over the API to answer it, or call the tool again with what it asks for."
)


def call_result(values: bytes) -> dict[str, Any]:
    """Return the result of a call by what its run ended with, as JSON."""
    found = load(values)
    if not isinstance(found, dict):
        return {"content": [_text(found if isinstance(found, str) else values.decode())], "isError": False}
    if list(found) == [ERROR]:
        return failed(_words(found[ERROR]))
    content = [_text(values.decode())]
    if INTERRUPT in found:
        content.append(_text(ASKS.format(name=INTERRUPT)))
    return {"content": content, "structuredContent": msgspec.Raw(values), "isError": False}


def failed(why: str) -> dict[str, Any]:
    """Return the result of a call that failed, in words that a model can act on."""
    return {"content": [_text(why)], "isError": True}


def _words(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    name, message = str(error.get("error") or "Error"), str(error.get("message") or "")
    return f"{name}: {message}" if message else name


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
