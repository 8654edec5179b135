"""Masks secrets in the output of programs on its way to the logs, and limits its length."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

from portside.kernel.shortening import shorten_line

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_MASK = "***"
_MIN_LENGTH = 6
_MAX_LINES = 20_000
_MAX_LINE = 8000


class MaskedOutput:
    """Passes the lines of a build to `on_line`, with the `secrets` masked.

    Values shorter than 6 characters are not masked: they are words like `true`, and masking them would garble the log.
    Paths below `folder`, the folder of the build, are shown relative to it.
    """

    def __init__(
        self,
        on_line: Callable[[str], None],
        secrets: Iterable[str] = (),
        max_lines: int = _MAX_LINES,
        folder: Path | None = None,
    ) -> None:
        self._on_line = on_line
        self._left = max_lines
        self._max_lines = max_lines
        self._masked_forms = list_masked_forms(secrets)
        self._folder = folder

    def mask(self, text: str) -> str:
        """Mask the values, and the user and password of every address; shorten the paths of the build."""
        for value in self._masked_forms:
            text = text.replace(value, _MASK)
        return mask_credentials(text if self._folder is None else shorten_paths(text, self._folder))

    def write(self, line: str) -> str:
        """Pass a line on, unless the limit of lines is reached; return the masked line."""
        masked_line = shorten_line(self.mask(line), _MAX_LINE)
        if self._left > 0:
            self._on_line(masked_line)
        elif self._left == 0:
            self._on_line(f"The build has written {self._max_lines} lines; the rest is left out")

        self._left -= 1
        return masked_line

    def silent(self) -> "MaskedOutput":
        """Return an output that masks the same values and passes nothing on."""
        return self._with_same_masks(lambda _line: None)

    def held(self, lines: list[str]) -> "MaskedOutput":
        """Return an output that masks the same values and adds the lines to a list."""
        return self._with_same_masks(lines.append)

    def _with_same_masks(self, on_line: Callable[[str], None]) -> "MaskedOutput":
        other = MaskedOutput(on_line)
        other._masked_forms = self._masked_forms
        other._folder = self._folder
        return other


def list_masked_forms(secrets: Iterable[str]) -> list[str]:
    """Return the strings to mask for some values: each line of a value, as it is and as it stands in a URL."""
    lines = {line.strip() for value in secrets for line in value.splitlines()}
    forms = {form for line in lines if len(line) >= _MIN_LENGTH for form in (line, quote(line, safe=""))}

    # The longest first, because one value may contain another.
    return sorted(forms, key=len, reverse=True)


def mask_values(text: str, secrets: Iterable[str]) -> str:
    """Mask values, and the user and password of every address, in a text."""
    return MaskedOutput(lambda _line: None, secrets).mask(text)


def shorten_paths(text: str, folder: Path) -> str:
    """Make paths below a build's folder relative: to the repository's root, or to the folder of its environment."""
    for parent in {str(folder), str(folder.resolve())}:
        text = re.sub(rf"{re.escape(parent)}(?:/source)?(?:(/)|(?![\w./-]))", lambda end: "" if end[1] else ".", text)
    return text


def mask_credentials(text: str) -> str:
    """Mask the user and password in the addresses of a text."""
    return _CREDENTIALS.sub(f"{_MASK}@", text)
