"""A parser for multipart/form-data as tracing SDKs write it: many small parts, no nesting, no transfer encodings.

Works on the whole body, which is bounded before it gets here, and yields parts in order. Attachments are arbitrary
bytes, so a line that only begins like the boundary is data.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

from portside.kernel.errors import Invalid

MAX_PARTS = 50_000
_MAX_HEADER_BYTES = 16 * 1024
_BOUNDARY = re.compile(
    r"^multipart/form-data\b.*?;\s*boundary=(?:\"([^\"]{1,200})\"|([^\s;,\"]{1,200}))", re.IGNORECASE
)
_NAME = re.compile(r";\s*name=(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;]+))", re.IGNORECASE)
_FILENAME = re.compile(r";\s*filename=(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;]+))", re.IGNORECASE)
_EXTENDED_NAME = re.compile(r";\s*name\*=utf-8''([^\s;]+)", re.IGNORECASE)


class Part(NamedTuple):
    """One part: its name, content type and bytes, and what the file was called if it is one."""

    name: str
    content_type: str
    data: bytes
    filename: str = ""


def parse(body: bytes, content_type: str, *, max_parts: int = MAX_PARTS) -> Iterator[Part]:
    """Yield the parts of a body. Raises Invalid when it is malformed or has more than `max_parts` parts."""
    match = _BOUNDARY.match(content_type)
    if match is None:
        raise Invalid.field(["header", "content-type"], "must be multipart/form-data with a boundary")
    delimiter = b"\r\n--" + (match[1] or match[2]).encode("utf-8", "replace")
    # The first delimiter may stand at the very beginning, where no line ends before it.
    opening = 0 if body.startswith(delimiter[2:]) else body.find(delimiter)
    if opening < 0:
        raise _broken("the boundary does not occur")
    at = opening + len(delimiter) - (2 if opening == 0 else 0)
    count = 0
    while (start := _line_end(body, at)) is not None:
        count += 1
        if count > max_parts:
            raise _broken(f"more than {max_parts} parts")
        data_at, headers = _headers(body, start)
        end = _next_delimiter(body, delimiter, data_at)
        yield Part(_name(headers), headers.get("content-type", ""), body[data_at:end], _filename(headers))
        at = end + len(delimiter)


def _line_end(body: bytes, at: int) -> int | None:
    """Return where the line of a delimiter ends; None for the closing one."""
    if body.startswith(b"--", at):
        return None
    end = body.find(b"\r\n", at, at + 200)
    if end < 0:
        raise _broken("a boundary is not followed by a part")
    return end + 2


def _next_delimiter(body: bytes, delimiter: bytes, at: int) -> int:
    while (at := body.find(delimiter, at)) >= 0:
        after = at + len(delimiter)
        if body.startswith((b"--", b"\r\n"), after) or body[after : after + 200].lstrip(b" \t").startswith(b"\r\n"):
            return at
        at += 1
    raise _broken("a part does not end")


def _headers(body: bytes, at: int) -> tuple[int, dict[str, str]]:
    """Read a part's headers; return where its data begins, and the headers by lower-case name."""
    if body.startswith(b"\r\n", at):
        return at + 2, {}
    end = body.find(b"\r\n\r\n", at, at + _MAX_HEADER_BYTES)
    if end < 0:
        raise _broken("the headers of a part do not end")
    headers: dict[str, str] = {}
    for line in body[at:end].decode("utf-8", "replace").split("\r\n"):
        key, _, value = line.partition(":")
        headers[key.strip().lower()] = value.strip()
    return end + 4, headers


def _name(headers: dict[str, str]) -> str:
    disposition = headers.get("content-disposition", "")
    if extended := _EXTENDED_NAME.search(disposition):
        return unquote(extended[1])
    match = _NAME.search(disposition)
    if match is None:
        raise _broken("a part has no name")
    return _unquoted(match)


def _filename(headers: dict[str, str]) -> str:
    match = _FILENAME.search(headers.get("content-disposition", ""))
    return "" if match is None else _unquoted(match)


def _unquoted(match: re.Match[str]) -> str:
    return re.sub(r"\\(.)", r"\1", match[1]) if match[1] is not None else match[2]


def _broken(why: str) -> Invalid:
    return Invalid.field(["body"], f"malformed multipart body: {why}", "multipart_invalid")
