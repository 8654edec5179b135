"""The output of servers: each writes to a file directly, so that a server can outlive the listener.

The listener follows the file and passes each line on. A file that has grown large is copied aside and truncated;
servers open it for appending, so they continue at its new beginning. Where a server writes faster than the listener
reads, the listener leaves lines out, so that no server can fill the disk. Secrets that a server prints are overwritten
in the file as soon as the listener has read them. Only this user may read the file.
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from portside.dataplane.failures import ServerFailed
from portside.dataplane.masking import list_masked_forms, shorten_paths
from portside.kernel.files import rotate
from portside.kernel.supervision import Supervision
from portside.kernel.tasks import cancel_and_wait
from portside.listener_api import NewLogEntry

_ROTATE_BYTES = 10_000_000
# A file beyond this size is truncated without having been read.
_MAX_BYTES = 50_000_000
# Short lines of so many bytes take some 30 ms, during which the listener does nothing else.
_READ_BYTES = 100_000
_MAX_LINE_BYTES = 1_000_000
_POLL_S = 0.25
# A file that has not grown for a while is looked at less often: most servers of a machine are idle.
_QUIET_AFTER_S = 10.0
_QUIET_POLL_S = 1.0
_TAIL_BYTES = 65_536
# Of the output of a failed server.
_LINES_SHOWN = 30
_LINES_AFTER = 5
_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"})
_SHOWN_ELSEWHERE = frozenset({"event", "message", "level", "timestamp", "logger", "exception", "stack"})
# How the server's command line begins its error message.
_ERROR = "error: "
# In the log line of a server whose graph hangs during import.
_HANGS = "is still importing"
_TRACEBACK = "Traceback (most recent call last):"

OnLine = Callable[[str], None]


def open_output(path: Path) -> tuple[int, int]:
    """Open the file for appending; return its descriptor and its length."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return descriptor, os.fstat(descriptor).st_size


def output_since(path: Path, since: int) -> str:
    """Return what was written after the file was `since` bytes long: at most its last 64 KiB, in whole lines."""
    size = path.stat().st_size
    since = since if since <= size else 0

    begin = max(since, size - _TAIL_BYTES)
    with path.open("rb") as file:
        file.seek(begin)
        text = file.read(_TAIL_BYTES).decode("utf-8", "replace")

    return text if begin == since else text.partition("\n")[2] or text


def server_failure(how: str, output: str, folder: Path | None = None) -> ServerFailed:
    """Return the failure of a server: the line of its output that says why, then how it ended, then the lines around.

    Paths below `folder`, the folder of its build, become relative.
    """
    if folder is not None:
        output = shorten_paths(output, folder)

    entries = [parse_line(line, 0) for line in output.splitlines() if line.strip()]
    position, cause = _find_cause(entries)
    lines = []
    for entry in _select_around(entries, position):
        lines += entry.message.splitlines()

    rest = [line for line in lines if line.removeprefix(_ERROR) != cause]
    head = how if cause is None else f"{cause}\n{how}"

    if not lines:
        head = f"{how}, without any output"

    return ServerFailed(f"{head}; its output:\n" + "\n".join(rest) if rest else head, how)


def _find_cause(entries: list[NewLogEntry]) -> tuple[int, str | None]:
    """Return the cause and its position: without one, None and the last position.

    It is the last error message of the command, exception of a traceback, or graph that hangs; without any of these,
    the last error of the log.
    """
    ending = None
    logged = None

    is_traceback = False
    for number, entry in enumerate(entries):
        first = entry.message.partition("\n")[0]
        ends_traceback = is_traceback and not first.startswith(" ")
        if ends_traceback or first.startswith(_ERROR) or _HANGS in first:
            ending = number, first.removeprefix(_ERROR)
        elif entry.level in {"ERROR", "CRITICAL"}:
            # The server that this one replaces writes to the same file, and logs errors of its runs meanwhile.
            logged = number, first

        is_still_traceback = is_traceback and not ends_traceback
        is_traceback = first == _TRACEBACK or is_still_traceback

    return ending or logged or (len(entries) - 1, None)


def _select_around(entries: list[NewLogEntry], position: int) -> list[NewLogEntry]:
    """Return the entries around a position, most of them before it, where a traceback is."""
    end = min(position + 1 + _LINES_AFTER, len(entries))
    begin = max(0, end - _LINES_SHOWN)
    return entries[begin : begin + _LINES_SHOWN]


class OutputFollower:
    """Follows the file from its current end, and overwrites the `secrets` in all of it."""

    def __init__(self, path: Path, on_line: OnLine, secrets: Iterable[str] = ()) -> None:
        self._path = path
        self._name = str(path)
        self._on_line = on_line
        self._masked_forms = [form.encode() for form in list_masked_forms(secrets)]
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""
        self._task = asyncio.create_task(Supervision("following of a server's output").run(self._run))

    async def close(self) -> None:
        """Pass the remaining lines on, and stop."""
        await cancel_and_wait(self._task)

        # A server that outlives the listener may write on, so this ends after as much as the file may hold.
        for _ in range(_MAX_BYTES // _READ_BYTES):
            if not self.poll():
                break

        if self._rest:
            self._on_line(self._rest.decode("utf-8", "replace"))

    async def _run(self) -> None:
        await self._blank_earlier_output()
        grown_at = time.monotonic()
        while True:
            started_at = time.monotonic()
            if self.poll():
                grown_at = time.monotonic()
                # The rest of the listener gets as much time as one server's output.
                await asyncio.sleep(grown_at - started_at)
            else:
                is_quiet = time.monotonic() - grown_at > _QUIET_AFTER_S
                await asyncio.sleep(_QUIET_POLL_S if is_quiet else _POLL_S)

    def poll(self) -> bool:
        """Pass new lines on, a bounded amount; return whether there were any."""
        # Opening a file costs ten times as much as its size, and a listener follows a hundred files that hardly grow.
        if self._is_at_end():
            return False

        with contextlib.suppress(FileNotFoundError), self._path.open("r+b", buffering=0) as file:
            self._leave_out_beyond(file, _MAX_BYTES)
            file.seek(self._offset)
            chunk = file.read(_READ_BYTES)
            self._offset += len(chunk)
            text = self._rest + chunk
            *lines, self._rest = text.split(b"\n")

            self._blank(file, self._offset - len(text), text)

            for line in lines:
                if line.strip():
                    self._on_line(line.decode("utf-8", "replace"))

            if len(self._rest) > _MAX_LINE_BYTES:
                self._rest = b""

            if self._offset > _ROTATE_BYTES and len(chunk) < _READ_BYTES:
                self._rotate()

            return bool(chunk)

        return False

    def _leave_out_beyond(self, file: BinaryIO, limit_bytes: int) -> None:
        """Truncate a file that is larger than the limit, and say how many bytes of it nobody has read."""
        size = os.fstat(file.fileno()).st_size
        if size > limit_bytes:
            file.truncate(0)
            unread = size - self._offset + len(self._rest)
            self._offset = 0
            self._rest = b""

            self._on_line(f"{unread:,} bytes of output are left out: the server wrote faster than the log can be read")

    def _is_at_end(self) -> bool:
        if self._offset > _ROTATE_BYTES:
            return False

        try:
            return os.stat(self._name).st_size == self._offset  # noqa: PTH116 - at a third of the cost
        except OSError:
            return False

    async def _blank_earlier_output(self) -> None:
        """Overwrite secrets in output from before this follower, a bounded amount at a time."""
        end = self._offset
        begin = 0
        rest = b""
        with contextlib.suppress(FileNotFoundError):
            while self._masked_forms and begin < end:
                with self._path.open("r+b", buffering=0) as file:
                    file.seek(begin)
                    chunk = file.read(min(_READ_BYTES, end - begin))
                    if not chunk:
                        return

                    begin += len(chunk)
                    text = rest + chunk
                    self._blank(file, begin - len(text), text)

                rest = text[-max(map(len, self._masked_forms)) :]
                await asyncio.sleep(0)

    def _blank(self, file: BinaryIO, offset: int, text: bytes) -> None:
        """Overwrite the secrets of a text at this offset with as many asterisks, so that nothing moves."""
        for value in self._masked_forms:
            begin = text.find(value)
            while begin >= 0:
                # A negative position was in the file before it was truncated.
                cut = max(0, -offset - begin)
                file.seek(offset + begin + cut)
                file.write(b"*" * (len(value) - cut))
                begin = text.find(value, begin + len(value))

    def _rotate(self) -> None:
        rotate(self._path)
        self._offset = 0


def parse_line(line: str, now_ms: int) -> NewLogEntry:
    """Parse a line of a server: a JSON object of the structured log, or plain text."""
    with contextlib.suppress(ValueError, RecursionError):
        fields = json.loads(line) if line.startswith("{") else None
        if isinstance(fields, dict) and ("event" in fields or "message" in fields):
            return _parse_structured(fields, now_ms)

    return NewLogEntry(now_ms, "ERROR" if line.startswith(_ERROR) else "INFO", line.rstrip())


def _parse_structured(fields: dict[str, object], now_ms: int) -> NewLogEntry:
    timestamp = _parse_timestamp(fields.get("timestamp"), now_ms)
    level = str(fields.get("level", "info")).upper()
    if level not in _LEVELS:
        level = "INFO"

    event = str(fields.get("event", fields.get("message")))
    extra = " ".join(f"{name}={value}" for name, value in fields.items() if name not in _SHOWN_ELSEWHERE)
    first_line = " ".join(part for part in (event, extra) if part)
    details = [str(fields[name]) for name in ("stack", "exception") if fields.get(name)]

    return NewLogEntry(timestamp, level, "\n".join([first_line, *details]))


def _parse_timestamp(value: object, now_ms: int) -> int:
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(value, str):
            return int(datetime.fromisoformat(value).timestamp() * 1000)

    return now_ms
