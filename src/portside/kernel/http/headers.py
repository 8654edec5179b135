"""One header of a request, without an object for all of them: a request passes several who look at one each."""

from typing import Any


def header_of(scope: Any, name: bytes) -> str | None:
    """Return the first header of a name, which is given in lower case; None where there is none."""
    for given, value in scope["headers"]:
        if given == name:
            text: str = value.decode("latin-1")
            return text
    return None
