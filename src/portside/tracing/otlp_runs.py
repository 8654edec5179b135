"""Spans of OpenTelemetry as runs.

The attribute conventions of several instrumentations are mapped to the fields of a run. Attributes of an unknown
convention stay in the run's metadata under their own names, so nothing is lost.

The id of a run is derived from the id of its span: a span that arrives twice is one run, and a child knows the id of
its parent before the parent arrives. The tracing SDKs derive both OpenTelemetry ids of a root from its run id; such a
root gets its run id back.
"""

import math
import re
from collections.abc import Iterable
from typing import Any
from uuid import UUID, uuid5

import msgspec

from portside.kernel.user_json import MAX_DEPTH, dump_user
from portside.tracing.fields import dotted_order_part, name_text, parse_uuid, plain_text
from portside.tracing.ingest import tags_text
from portside.tracing.otlp_wire import Span, SpanEvent, read_spans
from portside.tracing.types import IngestBatch, RunWrite

RUN_TYPES = frozenset({"tool", "chain", "llm", "retriever", "embedding", "prompt", "parser"})
_KINDS = {
    "chat": "llm", "completion": "llm", "text_completion": "llm", "generate_content": "llm", "embeddings": "embedding",
    "execute_tool": "tool", "invoke_agent": "chain", "create_agent": "chain", "agent": "chain", "workflow": "chain",
    "task": "chain", "reranker": "retriever", "guardrail": "chain", "evaluator": "chain",
}  # fmt: skip
_KIND_NAMES = (
    "langsmith.span.kind", "openinference.span.kind", "traceloop.span.kind", "gen_ai.operation.name",
    "llm.request.type",
)  # fmt: skip
_PROVIDERS = ("gen_ai.provider.name", "gen_ai.system", "llm.system")
_MODELS = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
_INPUTS = ("gen_ai.input.messages", "input.value", "traceloop.entity.input", "gen_ai.prompt", "prompt")
_OUTPUTS = ("gen_ai.output.messages", "output.value", "traceloop.entity.output", "gen_ai.completion")
_TOOLS = ("gen_ai.tool.name", "tool.name")
# Four digits: a list has at most 10,000 items.
_INPUT_LISTS = (r"gen_ai\.prompt\.(\d{1,4})\.(.+)", r"llm\.input_messages\.(\d{1,4})\.message\.(.+)")
_OUTPUT_LISTS = (r"gen_ai\.completion\.(\d{1,4})\.(.+)", r"llm\.output_messages\.(\d{1,4})\.message\.(.+)")
_DOCUMENTS = (r"retrieval\.documents\.(\d{1,4})\.document\.(.+)",)
_REQUEST = "gen_ai.request."
_METADATA = ("langsmith.metadata.", "traceloop.association.properties.")
_USAGE = {
    "gen_ai.usage.input_tokens": "input_tokens",
    "gen_ai.usage.prompt_tokens": "input_tokens",
    "llm.token_count.prompt": "input_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.usage.completion_tokens": "output_tokens",
    "llm.token_count.completion": "output_tokens",
    "gen_ai.usage.total_tokens": "total_tokens",
    "llm.usage.total_tokens": "total_tokens",
    "llm.token_count.total": "total_tokens",
}
_REASONING = ("gen_ai.usage.details.reasoning_tokens", "llm.token_count.completion_details.reasoning")
_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_PROMPT_EVENT, _COMPLETION_EVENT, _CHOICE_EVENT = "gen_ai.content.prompt", "gen_ai.content.completion", "gen_ai.choice"
_EXCEPTION = "exception"
# With fewer brackets no JSON text is nested so deeply that it could not be encoded again as a part of a run.
_SHALLOW = MAX_DEPTH // 2


class SpanAttributes:
    """The attributes of one span. Attributes that were read are not repeated in the metadata."""

    def __init__(self, span: Span) -> None:
        self._attributes, self._events = span.attributes, span.events
        self._read: set[str] = set()

    def first(self, *names: str) -> Any:
        """Return the first of these attributes that is set."""
        found = None
        for name in names:
            if name in self._attributes:
                self._read.add(name)
                found = self._attributes[name] if found is None else found
        return found

    def text(self, *names: str) -> str | None:
        """Return the first of these attributes as text."""
        found = self.first(*names)
        return None if found is None else str(found)

    def run_type(self) -> str:
        """Return the run type: as named by an attribute, else by the attributes that exist, else chain."""
        for name in _KIND_NAMES:
            kind = (self.text(name) or "").lower()
            if (kind := _KINDS.get(kind, kind)) in RUN_TYPES:
                return kind
        if self.first(*_TOOLS) is not None:
            return "tool"
        return "llm" if self.first(*_MODELS) is not None else "chain"

    def project(self) -> str | None:
        """Return the project name in the attributes."""
        return self.text("langsmith.trace.session_name")

    def project_id(self) -> UUID | None:
        """Return the project id in the attributes. Raises Invalid if it is not a UUID."""
        name = "langsmith.trace.session_id"
        value = self.text(name)
        return parse_uuid(value, name) if value else None

    def tags(self) -> list[str]:
        """Return the run's tags."""
        value = self.first("langsmith.span.tags")
        parts = value if isinstance(value, list) else str(value or "").split(",")
        return [tag for part in parts if (tag := str(part).strip())]

    def inputs(self) -> dict[str, Any]:
        """Return the inputs of the run."""
        messages = (
            self._listed(_INPUT_LISTS) or self._role_messages(_ROLES) or self._content(_PROMPT_EVENT, "gen_ai.prompt")
        )
        return _as_object(self.first(*_INPUTS), messages)

    def outputs(self) -> dict[str, Any]:
        """Return the outputs of the run."""
        documents = self._listed(_DOCUMENTS)
        if documents:
            return {"documents": [_document(found) for found in documents]}
        messages = self._listed(_OUTPUT_LISTS) or self._choices()
        messages = messages or self._content(_COMPLETION_EVENT, "gen_ai.completion")
        return _as_object(self.first(*_OUTPUTS), messages)

    def extra(self) -> dict[str, Any]:
        """Return metadata and model parameters. Call this last: every attribute that was not read becomes metadata."""
        metadata = _object(self.first("metadata")) | self._named(provider=_PROVIDERS, model_name=_MODELS)
        parameters = _object(self.first("llm.invocation_parameters"))
        for name, value in self._attributes.items():
            if name.startswith(_REQUEST):
                key = name.removeprefix(_REQUEST)
                parameters["stop" if key == "stop_sequences" else key] = value
            elif name.startswith(_METADATA):
                metadata[next(name.removeprefix(prefix) for prefix in _METADATA if name.startswith(prefix))] = value
            elif name not in self._read and name not in _USAGE and name not in _REASONING:
                metadata.setdefault(name, value)
        if usage := self._usage():
            metadata["usage_metadata"] = usage
        model = self.text("gen_ai.response.model")
        if model is not None:
            parameters.setdefault("model", model)
        return {"metadata": metadata} | ({"invocation_params": parameters} if parameters else {})

    def _named(self, **names: tuple[str, ...]) -> dict[str, str]:
        return {f"ls_{key}": found for key, of in names.items() if (found := self.text(*of)) is not None}

    def _usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = {}
        for name, key in _USAGE.items():
            value = self._attributes.get(name)
            # Instrumentations report counts as doubles too, and NaN for an unknown one.
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                usage.setdefault(key, int(value))
        if usage and "total_tokens" not in usage:
            usage["total_tokens"] = sum(usage.values())
        reasoning = self.first(*_REASONING)
        return usage | ({"output_token_details": {"reasoning": reasoning}} if reasoning is not None else {})

    def _listed(self, patterns: tuple[str, ...]) -> list[dict[str, Any]]:
        """Collect the items of a list from numbered attributes such as `gen_ai.prompt.0.role`."""
        items: dict[int, dict[str, Any]] = {}
        for name, value in self._attributes.items():
            match = _match(patterns, name)
            if match is not None:
                items.setdefault(int(match[1]), {})[match[2]] = value
                self._read.add(name)
        return [items[index] for index in sorted(items)]

    def _role_messages(self, roles: dict[str, str]) -> list[dict[str, Any]]:
        """Collect messages from events that are named after their role."""
        events = (event for event in self._events if event.name in roles)
        return [{"role": roles[event.name], **event.attributes} for event in events]

    def _choices(self) -> list[dict[str, Any]]:
        return [
            {"role": "assistant", **_object(event.attributes.get("message")), **_without(event, "message")}
            for event in self._events
            if event.name == _CHOICE_EVENT
        ]

    def _content(self, event_name: str, attribute: str) -> list[dict[str, Any]]:
        values = (event.attributes.get(attribute) for event in self._events if event.name == event_name)
        read: list[dict[str, Any]] = []
        for value in values:
            content = decode_text(value)
            read += [item for item in content if isinstance(item, dict)] if isinstance(content, list) else []
            if isinstance(content, str):
                read.append({"content": content})
        return read


def _match(patterns: tuple[str, ...], name: str) -> "re.Match[str] | None":
    return next((match for pattern in patterns if (match := re.fullmatch(pattern, name))), None)


def _without(event: SpanEvent, name: str) -> dict[str, Any]:
    return {key: value for key, value in event.attributes.items() if key != name}


def _document(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "page_content": found.get("content", ""),
        "metadata": _object(found.get("metadata"))
        | {k: v for k, v in found.items() if k not in {"content", "metadata"}},
        "type": "Document",
    }


def decode_text(value: Any) -> Any:
    """Decode text that is a JSON object or list; return other values unchanged, and text that is nested too deeply."""
    if not (isinstance(value, str) and value[:1] in {"{", "["}):
        return value
    try:
        decoded = msgspec.json.decode(value)
        if value.count("[") + value.count("{") > _SHALLOW:
            # A run holds it a few levels further down, such as in the metadata of a document in a list.
            dump_user([[[[decoded]]]])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return value
    return decoded


def _object(value: Any) -> dict[str, Any]:
    content = decode_text(value)
    return content if isinstance(content, dict) else {}


def _as_object(value: Any, messages: list[dict[str, Any]]) -> dict[str, Any]:
    if messages:
        return {"messages": messages}
    content = decode_text(value)
    if isinstance(content, dict):
        return content
    if isinstance(content, list):
        return {"messages": content}
    return {} if content is None else {"value": content}


def parse_otlp(body: bytes, content_type: str, project: str | None) -> IngestBatch:
    """Parse a request. Runs go to the project that their span names, else to `project`. Raises Invalid."""
    return IngestBatch([run_of(span, project) for span in read_spans(body, content_type)])


def run_of(span: Span, project: str | None) -> RunWrite:
    """Return the run of a span. Ingest places a child below its parent once the parent is stored."""
    trace_id, run_id = UUID(bytes=span.trace_id), run_id_of(span.trace_id, span.span_id)
    attributes = SpanAttributes(span)
    run_type, tags = attributes.run_type(), attributes.tags()
    inputs, outputs = attributes.inputs(), attributes.outputs()
    session = attributes.project() or project
    name = attributes.text("langsmith.trace.name") or span.name or "span"
    # A span that names itself as its parent would wait for itself.
    is_root = span.parent_id in {b"", span.span_id}
    order = dotted_order_part(span.start, run_id) if is_root and span.start else None
    return RunWrite(
        id=run_id,
        is_post=True,
        trace_id=trace_id,
        parent_run_id=None if is_root else run_id_of(span.trace_id, span.parent_id),
        dotted_order=order,
        project_id=attributes.project_id(),
        session_name=plain_text(session),
        name=name_text(name) or "span",
        run_type=run_type,
        start_time=span.start,
        end_time=span.end,
        tags=tags_text(tags) if tags else None,
        error=plain_text(_error(span)),
        inputs=dump_user(inputs).decode(),
        outputs=dump_user(outputs).decode(),
        extra=dump_user(attributes.extra()).decode(),
        events=_events(span),
    )


def run_id_of(trace_id: bytes, span_id: bytes) -> UUID:
    """Return the run id of a span."""
    trace = UUID(bytes=trace_id)
    return trace if span_id == trace_id[:8] else uuid5(trace, span_id.hex())


def _error(span: Span) -> str | None:
    texts: Iterable[str] = (
        "\n\n".join(
            str(event.attributes[key])
            for key in ("exception.message", "exception.stacktrace")
            if event.attributes.get(key)
        )
        for event in span.events
        if event.name == _EXCEPTION
    )
    exception = next((text for text in texts if text), None)
    return (exception or span.message or "error") if span.is_error or exception else None


def _events(span: Span) -> str | None:
    events = [{"name": e.name, "time": e.at, "attributes": e.attributes} for e in span.events]
    return dump_user(events).decode() if events else None
