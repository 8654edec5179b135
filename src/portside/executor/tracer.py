"""Traces attempts of a run that continue others.

It is apart from `tracing`, which a server without graphs imports: the tracer takes 14 MB.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from langchain_core.tracers import LangChainTracer


def build_tracer(run_input: Any, options: Mapping[str, Any]) -> LangChainTracer:
    """Return a tracer that shows the input of a run, where its attempt continues from a checkpoint without one.

    All attempts of a run are one trace. Without this its input would be null after the first attempt was lost.
    """

    class InputTracer(LangChainTracer):
        """LangChain copies a tracer by its class, so the input belongs to the class."""

        def on_chain_start(
            self, serialized: dict[str, Any], inputs: Any, *, parent_run_id: UUID | None = None, **others: Any
        ) -> Any:
            traced_input = run_input if parent_run_id is None else inputs
            return super().on_chain_start(serialized, traced_input, parent_run_id=parent_run_id, **others)

    return InputTracer(**options)
