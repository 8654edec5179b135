"""Files in the content of messages: content blocks of LangChain and of model providers, in one form."""

import mimetypes
from typing import Any, NamedTuple
from urllib.parse import urlsplit

FAMILIES = frozenset({"image", "audio", "video", "file"})
_BLOCKS = {"image_url": "image", "input_audio": "audio", "document": "file"}


class Media(NamedTuple):
    """A file: its family, and its URL or its bytes in base64."""

    family: str
    url: str | None = None
    data: str | None = None
    mime_type: str | None = None
    name: str | None = None


def find_media(block: Any) -> Media | None:
    """Return the file in a content block; None if it has none, or only a provider's id of one."""
    kind = block.get("type") if isinstance(block, dict) else None
    family = _BLOCKS.get(kind, kind) if isinstance(kind, str) else None
    if family not in FAMILIES:
        return None

    container = _get_container(block, str(kind))
    url = _find_text(container, "url")
    data = _find_text(container, "base64", "data", "file_data")
    mime_type = _find_text(container, "mime_type", "mimeType", "media_type")
    name = (
        _find_text(block, "filename")
        or _find_text(container, "filename")
        or _find_text(block.get("extras"), "filename")
    )

    audio_format = _find_text(container, "format")
    if mime_type is None and audio_format is not None:
        mime_type = f"audio/{audio_format}"

    for address in (url, data):
        if address is not None and address.startswith("data:"):
            head, _, data = address.removeprefix("data:").partition(",")
            url = None
            mime_type = mime_type or head.partition(";")[0] or None

            if not head.endswith(";base64"):
                return None

    if url is None and data is None:
        return None

    return Media(
        family=family,
        url=url,
        data=None if url is not None else data,
        mime_type=mime_type or guess_type(name, url),
        name=name,
    )


def guess_type(name: str | None, url: str | None) -> str | None:
    """Guess the media type of a file from its name, or else from the path of its URL; None if neither tells it."""
    try:
        return mimetypes.guess_type(name or urlsplit(url or "").path)[0]
    except ValueError:
        # Both functions parse a URL, and fail for example at brackets around anything but an IPv6 address.
        return None


def parse_scheme(url: str) -> str:
    """Return the scheme of a URL; the empty string for one without a scheme, or one that cannot be parsed."""
    try:
        return urlsplit(url).scheme
    except ValueError:
        return ""


def _get_container(block: dict[str, Any], kind: str) -> Any:
    """Return the part of a block with the file: providers put it below `source` or the name of its type."""
    for key in ("source", kind):
        inner = block.get(key)
        if isinstance(inner, dict):
            return inner
        if isinstance(inner, str):
            return {"url": inner}

    return block


def _find_text(container: Any, *names: str) -> str | None:
    """Return the first of these members that is a non-empty string."""
    values = (container.get(name) for name in names) if isinstance(container, dict) else ()
    return next((value for value in values if isinstance(value, str) and value), None)
