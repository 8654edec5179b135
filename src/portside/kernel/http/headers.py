"""Headers of a request, without an object for all of them."""

import re
from typing import Any

from portside.kernel.ids import random_id

Header = tuple[bytes, bytes]
# What a request id may not hold: it is written into logs, and terminals show those.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:-]")


def header_of(scope: Any, name: bytes) -> str | None:
    """Return the first header of a name, which is given in lower case; None where there is none."""
    for given, value in scope["headers"]:
        if given == name:
            text: str = value.decode("latin-1")
            return text
    return None


def first_headers(scope: Any) -> dict[bytes, bytes]:
    """Return the headers by their names in lower case, of each name the first one."""
    return dict(reversed(scope["headers"]))


def request_id_of(headers: dict[bytes, bytes]) -> str:
    """Return the id that a request was given by whoever sent it, short of what is unsafe in it; else a new one."""
    given = headers.get(b"x-request-id")
    safe = given and _UNSAFE.sub("", given.decode("latin-1"))[:200]
    return safe or random_id()
