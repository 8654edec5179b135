"""Notices that the tracing platform refuses the traces of this process, and traces attempts that continue others.

The project's code and its libraries create tracing clients of their own, so only the log shows the refusals of all.
"""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from langchain_core.tracers import LangChainTracer

_REFUSED = re.compile(r"\b(AuthError|Unauthorized|Forbidden|40[13] Client Error)\b|Authentication failed")


class _Refusals(logging.Filter):
    """Looks at the log of the tracing client."""

    def __init__(self) -> None:
        super().__init__()
        self.on_refused: Callable[[], object] = lambda: None

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every line."""
        if record.levelno >= logging.WARNING and _REFUSED.search(record.getMessage()):
            self.on_refused()
        return True


_refusals = _Refusals()


def watch_tracing(on_refused: Callable[[], object]) -> None:
    """Call a function from now on, in any thread, when the tracing platform refuses traces."""
    _refusals.on_refused = on_refused
    # A logger adds the same filter only once.
    logging.getLogger("langsmith.client").addFilter(_refusals)


def tracer_with_input(given: Any, options: Mapping[str, Any]) -> LangChainTracer:
    """Return a tracer that shows the input of a run, where its attempt continues from a checkpoint without one.

    All attempts of a run are one trace. Without this its input would be null after the first attempt was lost.
    """

    class InputTracer(LangChainTracer):
        """LangChain copies a tracer by its class, so the input belongs to the class."""

        def on_chain_start(
            self, serialized: dict[str, Any], inputs: Any, *, parent_run_id: UUID | None = None, **others: Any
        ) -> Any:
            shown = given if parent_run_id is None else inputs
            return super().on_chain_start(serialized, shown, parent_run_id=parent_run_id, **others)

    return InputTracer(**options)
