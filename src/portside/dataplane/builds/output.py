"""What the programs of a build say, on its way to the revision's log: nothing secret in it, and not without end."""

import re
from collections.abc import Callable, Iterable
from urllib.parse import quote

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_MASK = "***"
_SHORTEST = 6
_MAX_LINES = 20_000
_MAX_LINE = 8000


class Output:
    """Hands the lines of one build on to `on_line`; `hidden` are the values that must not show.

    Values of fewer than 6 characters are left alone: they are words like `true`, and masking them would garble the log.
    """

    def __init__(self, on_line: Callable[[str], None], hidden: Iterable[str] = (), max_lines: int = _MAX_LINES) -> None:
        self._on_line, self._left, self._max_lines = on_line, max_lines, max_lines
        lines = {line.strip() for value in hidden for line in value.splitlines()}
        forms = {form for line in lines if len(line) >= _SHORTEST for form in (line, quote(line, safe=""))}
        # The longest first: one value may hold another.
        self._hidden = sorted(forms, key=len, reverse=True)

    def mask(self, text: str) -> str:
        """Hide the values, and the user and password of every address."""
        for value in self._hidden:
            text = text.replace(value, _MASK)
        return mask_credentials(text)

    def say(self, line: str) -> str:
        """Hand a line on, unless there were too many before it; return it as it may be shown."""
        shown = self.mask(line)[:_MAX_LINE]
        if self._left > 0:
            self._on_line(shown)
        elif self._left == 0:
            self._on_line(f"The build has written {self._max_lines} lines; what follows is left out")
        self._left -= 1
        return shown

    def silent(self) -> "Output":
        """Return an output that masks the same and hands nothing on."""
        quiet = Output(lambda _line: None)
        quiet._hidden = self._hidden
        return quiet


def masked(text: str, hidden: Iterable[str]) -> str:
    """Hide values, and the user and password of every address, in one text."""
    return Output(lambda _line: None, hidden).mask(text)


def mask_credentials(text: str) -> str:
    """Hide the user and password in the addresses of a text."""
    return _CREDENTIALS.sub(f"{_MASK}@", text)
