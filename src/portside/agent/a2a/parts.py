"""Parts of messages: from the protocol to the content of a message of the graph, and back.

Files are passed on as they came, as blocks that LangChain's chat models take; nothing is fetched here.
"""

import base64
import binascii
import mimetypes
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from msgspec import UNSET

from portside.agent.a2a.errors import BadParams, WrongMedia
from portside.agent.a2a.params import File, Part
from portside.kernel.codec import dump_user

FAMILIES = frozenset({"text", "image", "audio", "video"})
TYPES = frozenset({"application/pdf", "application/json"})
_SCHEMES = frozenset({"http", "https"})

Plain = dict[str, Any]


def read_parts(parts: list[Part]) -> list[Plain]:
    """Check parts and return them in the words of version 0.3. Raises BadParams that names the part, WrongMedia."""
    return [_read(part, f"params.message.parts.{place}") for place, part in enumerate(parts)]


def text_of(parts: list[Plain]) -> str | None:
    """Return the text of parts, each in a line of its own; None where there is none."""
    texts = [part["text"] for part in parts if part["kind"] == "text"]
    return "\n".join(texts) if texts else None


def data_of(parts: list[Plain]) -> list[Any]:
    """Return the data of parts."""
    return [part["data"] for part in parts if part["kind"] == "data"]


def content_of(parts: list[Plain]) -> str | list[Plain]:
    """Return parts as the content of a message: text where they are nothing else, blocks where there are files."""
    if all(part["kind"] != "file" for part in parts):
        return "\n".join(_in_text(part) for part in parts)
    return [_block(part) for part in parts]


def parts_of(content: Any) -> list[Plain]:
    """Return the content of a message of the graph as parts; thoughts and calls of tools are not told."""
    if isinstance(content, str):
        return [text_part(content)] if content else []
    return [part for block in content or () for part in _told(block)] if isinstance(content, list) else []


def text_part(text: str) -> Plain:
    """Make a part of a text."""
    return {"kind": "text", "text": text}


def dict_of(value: Any) -> Plain:
    """Return a value where an object is expected; what a graph keeps there instead counts as nothing."""
    return value if isinstance(value, dict) else {}


def data_part(data: Any) -> Plain:
    """Make a part of data."""
    return {"kind": "data", "data": data}


def _read(part: Part, place: str) -> Plain:
    given = {"text": part.text, "data": part.data, "file": part.file, "raw": part.raw, "url": part.url}
    found = [name for name, value in given.items() if value is not None and value is not UNSET]
    if part.data is None and not found:
        found.append("data")
    if len(found) != 1:
        raise BadParams(f"Invalid params: {place}: give one of text, data and a file")
    kind = "file" if found[0] in ("raw", "url") else found[0]
    if part.kind is not None and part.kind != kind:
        raise BadParams(f"Invalid params: {place}: kind is {part.kind}, but it holds {kind}")
    read: Plain = {"kind": kind, kind: _file(part, place) if kind == "file" else given[kind]}
    return read | {"metadata": part.metadata} if part.metadata else read


def _file(part: Part, place: str) -> Plain:
    file = part.file or File(uri=part.url, bytes=part.raw, mime_type=part.media_type, name=part.filename)
    if (file.uri is None) == (file.bytes is None):
        raise BadParams(f"Invalid params: {place}: a file has either a URI or bytes")
    if file.uri is not None and urlsplit(file.uri).scheme not in _SCHEMES:
        raise BadParams(f"Invalid params: {place}: the URI of a file begins with https:// or http://")
    if file.bytes is not None:
        try:
            base64.b64decode(file.bytes, validate=True)
        except (binascii.Error, ValueError):
            raise BadParams(f"Invalid params: {place}: the bytes of a file are base64") from None
    media = file.mime_type or mimetypes.guess_type(file.name or urlsplit(file.uri or "").path)[0]
    if media is None:
        raise BadParams(f"Invalid params: {place}: say of what media type the file is")
    if media.split("/")[0] not in FAMILIES and media.split(";")[0].strip() not in TYPES:
        raise WrongMedia(
            f"{place}: the agent takes no {media[:100]}; it takes text, images, audio, video, PDF and JSON"
        )
    known = {"uri": file.uri, "bytes": file.bytes, "mimeType": media, "name": file.name}
    return {key: value for key, value in known.items() if value is not None}


def _in_text(part: Plain) -> str:
    return part["text"] if part["kind"] == "text" else dump_user(part["data"]).decode()


def _block(part: Plain) -> Plain:
    if part["kind"] != "file":
        return {"type": "text", "text": _in_text(part)}
    file = part["file"]
    family = file["mimeType"].split("/")[0]
    block = {"type": family if family in ("image", "audio", "video") else "file", "mime_type": file["mimeType"]}
    block |= {"url": file["uri"]} if "uri" in file else {"base64": file["bytes"]}
    return block | {"extras": {"filename": file["name"]}} if "name" in file else block


def _told(block: Any) -> Iterator[Plain]:
    if isinstance(block, str):
        yield text_part(block)
    elif isinstance(block, dict) and block.get("type") in ("text", "text-plain"):
        if isinstance(block.get("text"), str) and block["text"]:
            yield text_part(block["text"])
    elif isinstance(block, dict) and block.get("type") in ("image", "audio", "video", "file"):
        yield from _told_file(block)


def _told_file(block: Plain) -> Iterator[Plain]:
    name = block.get("filename") or dict_of(block.get("extras")).get("filename")
    about = {key: value for key, value in (("mimeType", block.get("mime_type")), ("name", name)) if value}
    raw = block.get("base64") or block.get("data")
    if isinstance(block.get("url"), str):
        yield {"kind": "file", "file": {"uri": block["url"], **about}}
    elif isinstance(raw, str):
        yield {"kind": "file", "file": {"bytes": raw, **about}}
