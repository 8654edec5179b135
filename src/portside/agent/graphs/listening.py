"""Hearing models that speak in the protocol's own events: `model.astream_events(version="v3")` inside a node.

Langgraph's stream of messages knows only the pieces of older ways to call a model; whoever is called the new way would
be told as a whole at its end. What is heard goes into the graph's own stream, through its writer, so that it keeps its
place among the other events. Runs that nobody follows over the protocol have no listener.
"""

from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import ChatGenerationChunk
from langgraph.config import get_stream_writer
from langgraph.constants import TAG_NOSTREAM
from langgraph.types import StreamWriter

MODEL_RUN = "portside_model_run"
"""The key of a message's metadata that names the call of the model that made it."""
_PLACE = "langgraph_checkpoint_ns"


class Spoken(NamedTuple):
    """One event of a model that speaks the protocol, and where it was called."""

    event: dict[str, Any]
    metadata: dict[str, Any]


class Listener(BaseCallbackHandler):
    """Listens to the models of one run."""

    # What is heard later than it was said would come after the end of its task.
    run_inline = True

    def __init__(self) -> None:
        self._write: StreamWriter | None = None
        self._calls: dict[UUID, dict[str, Any]] = {}

    def on_chain_start(self, *_: Any, metadata: dict[str, Any] | None = None, **__: Any) -> None:
        """Look for the writer."""
        self._find_writer(metadata or {})

    def on_chat_model_start(
        self,
        *_: Any,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **__: Any,
    ) -> None:
        """Note a call, and name it in the metadata that its pieces carry as well."""
        if metadata is None or _PLACE not in metadata or TAG_NOSTREAM in (tags or ()):
            return
        self._find_writer(metadata)
        metadata[MODEL_RUN] = str(run_id)
        self._calls[run_id] = metadata

    def on_llm_new_token(self, *_: Any, chunk: Any = None, run_id: UUID, **__: Any) -> None:
        """Give a piece the id of its message where the model did not; langgraph would give each piece another."""
        if isinstance(chunk, ChatGenerationChunk) and chunk.message.id is None and run_id in self._calls:
            chunk.message.id = f"lc_run--{run_id}"

    def on_stream_event(self, event: Any, *, run_id: UUID, **_: Any) -> None:
        """Pass on what a model says."""
        metadata = self._calls.get(run_id)
        if metadata is not None and self._write is not None:
            self._write(Spoken(dict(event), metadata))

    def on_llm_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Forget a call."""
        self._calls.pop(run_id, None)

    def on_llm_error(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Forget a call."""
        self._calls.pop(run_id, None)

    def _find_writer(self, metadata: dict[str, Any]) -> None:
        """Take the writer of the graph itself: what a node streams from a graph of its own is the node's to read."""
        if self._write is not None or _PLACE not in metadata or "|" in metadata[_PLACE]:
            return
        try:
            self._write = get_stream_writer()
        except (RuntimeError, KeyError):
            # The first callbacks of a task come before it has a context.
            return
