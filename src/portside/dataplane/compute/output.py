"""What servers write: straight into a file, so that one which outlives the listener still can, and from there on.

The listener follows the file and hands each line on. A file that has grown large is copied aside and cut; servers
append, so they go on at its new beginning.
"""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from portside.dataplane.types import LogEntry

_ROTATE_BYTES = 10_000_000
_READ_BYTES = 1_000_000
_POLL_S = 0.25
_TAIL_BYTES = 65_536
_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"})
_NOT_SHOWN = frozenset({"event", "message", "level", "timestamp", "logger", "exception"})

OnLine = Callable[[str], None]


def open_output(path: Path) -> tuple[int, int]:
    """Open the file for appending; return its descriptor and how long it is now."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return descriptor, os.fstat(descriptor).st_size


def last_lines(path: Path, since: int, count: int = 30) -> str:
    """Return the last lines that were written to the file after it was `since` bytes long."""
    size = path.stat().st_size
    begin = max(since if since <= size else 0, size - _TAIL_BYTES)
    with path.open("rb") as file:
        file.seek(begin)
        text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    return "\n".join(text.rstrip().splitlines()[-count:])


class Follower:
    """Follows the file from its present end."""

    def __init__(self, path: Path, on_line: OnLine) -> None:
        self._path, self._on_line = path, on_line
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Hand on what is left, and stop."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        while self.poll():
            pass
        if self._rest:
            self._on_line(self._rest.decode("utf-8", "replace"))

    async def _run(self) -> None:
        while True:
            busy = self.poll()
            await asyncio.sleep(0 if busy else _POLL_S)

    def poll(self) -> bool:
        """Hand on what is new, a bounded amount; return whether there was anything."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            chunk = file.read(_READ_BYTES)
            self._offset += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    self._on_line(line.decode("utf-8", "replace"))
            if len(self._rest) > _READ_BYTES:
                self._rest = b""
            if self._offset > _ROTATE_BYTES and len(chunk) < _READ_BYTES:
                self._rotate()
            return bool(chunk)
        return False

    def _rotate(self) -> None:
        shutil.copyfile(self._path, self._path.with_name(f"{self._path.name}.1"))
        os.truncate(self._path, 0)
        self._offset = 0


def parse_line(line: str, now_ms: int) -> LogEntry:
    """Read a line of a server: a JSON object of the structured log, or plain text."""
    with contextlib.suppress(ValueError, RecursionError):
        fields = json.loads(line) if line.startswith("{") else None
        if isinstance(fields, dict) and ("event" in fields or "message" in fields):
            return _structured(fields, now_ms)
    return LogEntry(now_ms, "INFO", line.rstrip())


def _structured(fields: dict[str, object], now_ms: int) -> LogEntry:
    level = str(fields.get("level", "info")).upper()
    extra = " ".join(f"{name}={value}" for name, value in fields.items() if name not in _NOT_SHOWN)
    message = " ".join(part for part in (str(fields.get("event", fields.get("message"))), extra) if part)
    if "exception" in fields:
        message = f"{message}\n{fields['exception']}"
    return LogEntry(_moment(fields.get("timestamp"), now_ms), level if level in _LEVELS else "INFO", message)


def _moment(stamp: object, now_ms: int) -> int:
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(stamp, str):
            return int(datetime.fromisoformat(stamp).timestamp() * 1000)
    return now_ms
