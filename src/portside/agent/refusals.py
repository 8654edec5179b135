"""Remembers which other servers refuse this one, so that the owner of a deployment reads it in its status.

Only refusals that last are kept: a wrong key of the tracing platform, a webhook that answers 401 or 403. A refusal is
forgotten after a success, or after a while without another one.
"""

import logging
import os
import re
import time

from portside.kernel.aliases import environment_names

FORGET_AFTER_S = 600.0
# One line for each server; more would hide the others.
LIMIT = 5
_TRACING_VARIABLES = (*environment_names("LANGSMITH_TRACING_V2"), *environment_names("LANGSMITH_TRACING"))
_REFUSED_TRACES = re.compile(r"\b(AuthError|Unauthorized|Forbidden|40[13] Client Error)\b|Authentication failed")
_TRACING = "tracing"
_TRACES = (
    "The tracing platform refuses the API key of this server, so its traces are lost. Correct LANGSMITH_API_KEY and "
    "LANGSMITH_ENDPOINT among the secrets of the deployment."
)


def sends_traces() -> bool:
    """Whether the environment asks for traces. The tracing client, which only the graphs need, has the same rule."""
    given = next((value for name in _TRACING_VARIABLES if (value := os.environ.get(name))), "")
    return given == "true"


class Refusals:
    """The refusals of this process, each with its last moment. Safe to call in any thread."""

    def __init__(self) -> None:
        self._noted: dict[str, tuple[float, str]] = {}

    def note(self, server: str, message: str) -> None:
        """Remember that a server refuses this one."""
        self._noted.pop(server, None)
        self._noted[server] = time.monotonic(), message

    def forget(self, server: str) -> None:
        """Forget a refusal, because the server accepted a call."""
        self._noted.pop(server, None)

    def current(self) -> list[str]:
        """Return the messages of the refusals that still last."""
        oldest = time.monotonic() - FORGET_AFTER_S
        for server, (moment, _message) in list(self._noted.items()):
            if moment < oldest:
                self.forget(server)
        return [message for _moment, message in list(self._noted.values())[-LIMIT:]]


REFUSALS = Refusals()


class _TraceRefusals(logging.Filter):
    """Notes refusals that the tracing client only logs: it runs in the project's code, with clients of its own."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every line."""
        if record.levelno >= logging.WARNING and _REFUSED_TRACES.search(record.getMessage()):
            REFUSALS.note(_TRACING, _TRACES)
        return True


_trace_refusals = _TraceRefusals()


def watch_tracing() -> None:
    """Note refusals of the tracing platform from now on. A logger adds the same filter only once."""
    logging.getLogger("langsmith.client").addFilter(_trace_refusals)
