"""The responses to a call: its progress while it runs, then its result or the reason of its failure.

The progress of a call is the number of steps of the graph that have ended. A graph that knows better writes
`{"progress": 30, "total": 100, "message": "…"}` to its stream. That is passed on unchanged, and from then on steps no
longer count. Progress only grows.
"""

import math
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from portside.agent.media import Media, find_media, parse_scheme
from portside.executor.requests import INTERRUPT
from portside.kernel.codec import load

# What a run streams for `CallProgress`.
STREAM_MODES = ["updates", "custom"]
MAX_MESSAGE_LENGTH = 1000
# The only key of the result of a run that failed.
ERROR = "__error__"
UNANSWERED = "The agent asked something, and the question was declined, dismissed or not answered in time."
CANCELLED = "The call was cancelled before the agent was done."
INTERRUPTED = (
    "The agent is not done: it stopped to ask a question, which is under {name}. This client accepts no questions. "
    "Call the tool again with the answer in its arguments, or run the agent on a thread over the API and answer there."
)
_MEDIA_TYPES = {"image": "image/png", "audio": "audio/wav"}

Content = dict[str, Any]


class CallProgress:
    """The progress of one call."""

    def __init__(self) -> None:
        self._latest = -math.inf
        self._is_from_graph = False

    def read(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Yield the progress that the events of a chunk report."""
        for frame in chunk.split(b"\r\n\r\n"):
            head, _, rest = frame.partition(b"\r\n")
            name = head.removeprefix(b"event: ")
            data = rest.partition(b"\r\n")[0].removeprefix(b"data: ")
            if name == b"updates":
                progress = self._count_step(load(data))
            elif name == b"custom":
                progress = self._read_event(load(data))
            else:
                progress = None

            if progress is not None:
                self._latest = progress["progress"]
                yield progress

    def _count_step(self, nodes: Any) -> dict[str, Any] | None:
        if self._is_from_graph or not isinstance(nodes, dict) or INTERRUPT in nodes:
            return None

        message = f"Done: {', '.join(map(str, nodes))}"[:MAX_MESSAGE_LENGTH]
        return {"progress": max(self._latest, 0) + 1, "message": message}

    def _read_event(self, event: Any) -> dict[str, Any] | None:
        if not isinstance(event, dict) or not _is_number(event.get("progress")):
            return None
        if event["progress"] <= self._latest:
            return None

        self._is_from_graph = True
        progress = {"progress": event["progress"]}
        if _is_number(event.get("total")):
            progress["total"] = event["total"]

        if isinstance(event.get("message"), str):
            progress["message"] = event["message"][:MAX_MESSAGE_LENGTH]

        return progress


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def to_call_result(values: bytes, *, knows_links: bool = True) -> Content:
    """Return the result of a call, from the JSON that its run returned.

    A reply with files becomes content block by block, any other result becomes JSON text. A client that does not
    read links to resources gets their addresses as text.
    """
    result = load(values)
    if isinstance(result, dict) and list(result) == [ERROR]:
        return build_failure(_describe_error(result[ERROR]))

    content = _to_file_content(_find_reply(result), knows_links=knows_links)
    if not content:
        content = [_build_text(result if isinstance(result, str) else values.decode())]

    if not isinstance(result, dict):
        return {"content": content, "isError": False}

    if INTERRUPT in result:
        content.append(_build_text(INTERRUPTED.format(name=INTERRUPT)))

    return {"content": content, "structuredContent": msgspec.Raw(values), "isError": False}


def build_failure(reason: str) -> Content:
    """Return the result of a call that failed; the model that called reads the reason."""
    return {"content": [_build_text(reason)], "isError": True}


def _describe_error(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)

    name = str(error.get("error") or "Error")
    message = str(error.get("message") or "")
    return f"{name}: {message}" if message else name


def _find_reply(result: Any) -> list[Any]:
    """Return the content blocks of a graph's reply: its last message, or the message or blocks that it returned."""
    if isinstance(result, dict) and isinstance(result.get("messages"), list):
        last = result["messages"][-1] if result["messages"] else None
        result = last if isinstance(last, dict) and last.get("type") != "human" else None

    content = result.get("content") if isinstance(result, dict) and "type" in result else result
    return content if isinstance(content, list) else []


def _to_file_content(blocks: list[Any], *, knows_links: bool) -> list[Content]:
    """Return the content for a reply with files; none for a reply of text alone."""
    content = [part for block in blocks for part in _to_content(block, knows_links=knows_links)]
    return content if any(_is_file(block) for block in blocks) else []


def _is_file(block: Any) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind in ("resource", "resource_link") or find_media(block) is not None


def _to_content(block: Any, *, knows_links: bool) -> Iterator[Content]:
    if isinstance(block, str):
        yield _build_text(block)
    elif not isinstance(block, dict):
        return
    elif block.get("type") in ("text", "text-plain"):
        if isinstance(block.get("text"), str) and block["text"]:
            yield _build_text(block["text"])
    elif block.get("type") == "resource" and _is_resource(block.get("resource")):
        yield {"type": "resource", "resource": block["resource"]}
    elif block.get("type") == "resource_link" and _is_url(block.get("uri")):
        optional = {key: block[key] for key in ("mimeType", "name") if isinstance(block.get(key), str)}
        link = Media("file", url=block["uri"], mime_type=optional.get("mimeType"), name=optional.get("name"))
        yield _build_link(link, knows_links=knows_links)
    else:
        media = find_media(block)
        if media is not None:
            yield _build_link(media, knows_links=knows_links) if media.data is None else _build_file(media)


def _build_file(media: Media) -> Content:
    """Return a file as content. The protocol has content types for images and audio; other files are resources."""
    mime_type = media.mime_type or _MEDIA_TYPES.get(media.family, "application/octet-stream")
    if media.family in _MEDIA_TYPES:
        return {"type": media.family, "data": media.data, "mimeType": mime_type}

    uri = f"attachment:///{quote(media.name or media.family, safe='')}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "blob": media.data}}


def _build_link(media: Media, *, knows_links: bool) -> Content:
    url = str(media.url)
    if not knows_links or not _is_url(url):
        return _build_text(url)

    name = media.name or urlsplit(url).path.rpartition("/")[2] or media.family
    optional = {"mimeType": media.mime_type} if media.mime_type else {}
    return {"type": "resource_link", "uri": url, "name": name, **optional}


def _is_url(url: Any) -> bool:
    return isinstance(url, str) and bool(parse_scheme(url))


def _is_resource(resource: Any) -> bool:
    if not isinstance(resource, dict) or not _is_url(resource.get("uri")):
        return False
    return isinstance(resource.get("text"), str) or isinstance(resource.get("blob"), str)


def _build_text(text: str) -> Content:
    return {"type": "text", "text": text}
