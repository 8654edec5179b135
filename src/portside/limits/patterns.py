"""What a row of the table matches: a method, a path, both, or anything.

OPTIONS    /info    */v1/metadata/submit    POST containing /charts    GET /runs/{uuid}    any
"""

import re

import msgspec

from portside.kernel.errors import UserMistake

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_PATH = re.compile(r"^(\*?/[A-Za-z0-9_.~/{}-]+)$")


class Pattern(msgspec.Struct, frozen=True):
    """One way for a request to belong to a row. `rank` is greater for what is more specific."""

    method: str | None
    path: re.Pattern[str] | None
    rank: int

    def fits(self, method: str, path: str) -> bool:
        """Whether a request is meant."""
        return self.method in {None, method} and (self.path is None or self.path.search(path) is not None)


def read_pattern(text: str) -> Pattern:
    """Read a pattern as the table writes it. Raises UserMistake."""
    words = text.split()
    method = words.pop(0) if words and words[0] in METHODS else None
    if not words and method is not None:
        return Pattern(method, None, len(text) + 10_000)
    if words == ["any"] and method is None:
        return Pattern(None, None, 0)
    contains = len(words) == 2 and words[0] == "containing"
    if not words or len(words) > 1 + contains or not _PATH.match(words[-1]):
        raise UserMistake(f"{text!r} is no pattern; write METHOD, /path, METHOD /path, containing /path, */path or any")
    return Pattern(method, _expression(words[-1], contains=contains), len(words[-1]))


def _expression(path: str, *, contains: bool) -> re.Pattern[str]:
    literal = re.escape(path.removeprefix("*")).replace(re.escape("{uuid}"), _UUID)
    if contains:
        return re.compile(literal)
    if path.startswith("*"):
        return re.compile(f"{literal}/?$")
    if path.endswith("{uuid}"):
        return re.compile(f"^{literal}/?$")
    return re.compile(f"^{literal}(?:/|$)")
