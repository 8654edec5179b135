"""The events of models that emit the event streaming protocol's own, among the events of their graph.

A node may call a model with `model.astream_events(version="v3")`, which emits the protocol's own events. Langgraph's
stream of messages does not contain those; the message would only arrive as a whole at its end. `ModelListener` puts
them into the graph's own stream, by its writer, so that they keep their place among the other events.
"""

from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import ChatGenerationChunk
from langgraph.config import get_stream_writer
from langgraph.constants import TAG_NOSTREAM
from langgraph.types import StreamWriter

MODEL_RUN = "portside_model_run"
"""The key of a message's metadata that holds the id of the model call that made the message."""
_NAMESPACE_KEY = "langgraph_checkpoint_ns"


class ModelEvent(NamedTuple):
    """An event that a model emitted in the protocol's own form, and the metadata of the call."""

    event: dict[str, Any]
    metadata: dict[str, Any]


class ModelListener(BaseCallbackHandler):
    """Passes on the events of the models of one run."""

    # A callback that ran later would deliver an event after the end of its task.
    run_inline = True

    def __init__(self) -> None:
        self._write: StreamWriter | None = None
        self._calls: dict[UUID, dict[str, Any]] = {}

    def on_chain_start(self, *_: Any, metadata: dict[str, Any] | None = None, **__: Any) -> None:
        """Find the graph's writer."""
        self._find_writer(metadata or {})

    def on_chat_model_start(
        self,
        *_: Any,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **__: Any,
    ) -> None:
        """Remember a call, and put its id into the metadata that the pieces of its message carry."""
        if metadata is None or _NAMESPACE_KEY not in metadata or TAG_NOSTREAM in (tags or ()):
            return

        self._find_writer(metadata)
        metadata[MODEL_RUN] = str(run_id)
        self._calls[run_id] = metadata

    def on_llm_new_token(self, *_: Any, chunk: Any = None, run_id: UUID, **__: Any) -> None:
        """Give a piece the id of its message if the model did not: langgraph would give each piece a different one."""
        if isinstance(chunk, ChatGenerationChunk) and chunk.message.id is None and run_id in self._calls:
            chunk.message.id = f"lc_run--{run_id}"

    def on_stream_event(self, event: Any, *, run_id: UUID, **_: Any) -> None:
        """Write a model's event into the graph's stream."""
        metadata = self._calls.get(run_id)
        if metadata is not None and self._write is not None:
            self._write(ModelEvent(dict(event), metadata))

    def on_llm_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Forget a call."""
        self._calls.pop(run_id, None)

    def on_llm_error(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Forget a call."""
        self._calls.pop(run_id, None)

    def _find_writer(self, metadata: dict[str, Any]) -> None:
        """Remember the writer of the root graph. A graph that a node runs itself streams to that node."""
        if self._write is not None or _NAMESPACE_KEY not in metadata or "|" in metadata[_NAMESPACE_KEY]:
            return

        try:
            self._write = get_stream_writer()
        except (RuntimeError, KeyError):
            # The first callbacks of a task run before its context is set.
            return
