"""A task as a stream: the task, what the agent says while it says it, what came of it, and its last state.

What the agent says is told as a whole each time something is added to it, so whoever comes late has missed nothing. A
reader that is slower than the agent gets fewer updates, each of them up to date.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from portside.agent.a2a.parts import text_part
from portside.agent.a2a.tasks import COMPLETED, Standing, agent_message
from portside.kernel.clock import iso, now
from portside.kernel.codec import load

MESSAGES = "messages"
_SPOKEN = frozenset({"ai", "AIMessageChunk"})

Plain = dict[str, Any]


async def spoken(source: AsyncIterator[bytes], standing: Standing) -> AsyncIterator[Plain]:
    """Yield a status update for each message that grew, out of the events of a run."""
    texts: dict[str, str] = {}
    async for chunk in source:
        grown: dict[str, None] = {}
        for name, data in _events(chunk):
            if name == MESSAGES and (message_id := _grow(texts, load(data)[0])):
                grown[message_id] = None
        for message_id in grown:
            message = agent_message(standing, message_id, [text_part(texts[message_id])])
            status = {"state": "working", "timestamp": iso(now()), "message": message}
            yield status_update(standing, status, is_final=False)


def outcome(standing: Standing, task: Plain) -> Iterator[Plain]:
    """Yield what a task left, and the state that it stopped in."""
    for artifact in task.get("artifacts", ()):
        named = {"taskId": standing.task_id, "contextId": str(standing.thread_id)}
        yield {"kind": "artifact-update", **named, "artifact": artifact, "append": False, "lastChunk": True}
    yield status_update(standing, task["status"], is_final=True)


def status_update(standing: Standing, status: Plain, *, is_final: bool) -> Plain:
    """Make the event of a state."""
    named = {"taskId": standing.task_id, "contextId": str(standing.thread_id)}
    return {"kind": "status-update", **named, "status": status, "final": is_final}


def with_good_news(standing: Standing, task: Plain) -> Plain:
    """Add the message that a task which is asked for is completed with."""
    if standing.state == "completed":
        message = agent_message(standing, f"{standing.run_id}-status", [text_part(COMPLETED)])
        task["status"] = {**task["status"], "message": message}
    return task


def _grow(texts: dict[str, str], piece: Any) -> str | None:
    """Add a piece to the message that it is of; return whose message grew."""
    if not isinstance(piece, dict) or piece.get("type") not in _SPOKEN:
        return None
    text, message_id = _text(piece.get("content")), str(piece.get("id"))
    if not text:
        return None
    texts[message_id] = (texts.get(message_id, "") if piece["type"] == "AIMessageChunk" else "") + text
    return message_id


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else ()
    texts = (block.get("text") if isinstance(block, dict) else block for block in blocks)
    return "".join(text for text in texts if isinstance(text, str))


def _events(chunk: bytes) -> Iterator[tuple[str, bytes]]:
    """Take events apart that go to clients of a run as they are."""
    for frame in chunk.split(b"\r\n\r\n"):
        name, separator, rest = frame.removeprefix(b"event: ").partition(b"\r\ndata: ")
        if separator:
            yield name.decode(), rest.partition(b"\r\n")[0]
