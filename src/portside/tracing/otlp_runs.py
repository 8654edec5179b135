"""Spans of OpenTelemetry as runs.

The attribute conventions of several instrumentations are mapped to the fields of a run. Attributes of an unknown
convention stay in the run's metadata under their own names, so nothing is lost.

Where a run stands among the others is read by `otlp_places.py`, its inputs and outputs by `otlp_messages.py`, and its
tokens by `otlp_usage.py`.
"""

import base64
import binascii
from typing import Any
from uuid import UUID

from portside.kernel.errors import Invalid
from portside.kernel.user_json import dump_user
from portside.tracing.fields import build_dotted_order_part, encode_tags, parse_uuid, to_name, to_plain_text
from portside.tracing.otlp_attributes import SpanAttributes
from portside.tracing.otlp_messages import read_values
from portside.tracing.otlp_places import PLACES, SpanPlaces
from portside.tracing.otlp_usage import read_usage
from portside.tracing.otlp_values import decode_list, decode_object, decode_text
from portside.tracing.otlp_wire import Span, read_spans
from portside.tracing.types import AttachmentWrite, IngestBatch, RefusedRun, RunWrite

RUN_TYPES = frozenset({"tool", "chain", "llm", "retriever", "embedding", "prompt", "parser"})
_KINDS = {
    "chat": "llm",
    "completion": "llm",
    "text_completion": "llm",
    "generate_content": "llm",
    "embeddings": "embedding",
    "execute_tool": "tool",
    "invoke_agent": "chain",
    "create_agent": "chain",
    "invoke_workflow": "chain",
    "agent": "chain",
    "workflow": "chain",
    "task": "chain",
    "reranker": "retriever",
    "rerank": "retriever",
    "retrieval": "retriever",
    "guardrail": "chain",
    "evaluator": "chain",
}
_KIND_NAMES = (
    "langsmith.span.kind",
    "openinference.span.kind",
    "traceloop.span.kind",
    "gen_ai.operation.name",
    "llm.request.type",
    "traceloop.llm.request.type",
)
# The spans of Vercel's SDK that call a model, as `ai.operationId` ends. The spans around them repeat the usage.
_VERCEL_KINDS = {
    "doGenerate": "llm",
    "doStream": "llm",
    "doEmbed": "embedding",
    "doRerank": "retriever",
    "toolCall": "tool",
}
_VERCEL_OPERATION = "ai.operationId"
_VERCEL_PROVIDER = "ai.model.provider"
_PROVIDERS = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", _VERCEL_PROVIDER)
_MODELS = (
    "gen_ai.response.model",
    "gen_ai.request.model",
    "llm.response.model_name",
    "llm.request.model_name",
    "llm.model_name",
    "embedding.model_name",
    "reranker.model_name",
)
# Names of models that say nothing about the kind of a run: agents have them too.
_OTHER_MODELS = ("ai.response.model", "ai.model.id", "model_name")
_TOOLS = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name")
_PROMPT_VARIABLES = "llm.prompt_template.variables"
_REQUESTS = ("gen_ai.request.", "ai.settings.")
_METADATA = ("langsmith.metadata.", "traceloop.association.properties.", "ai.telemetry.metadata.")
_PARAMETERS = {
    "llm.presence_penalty": "presence_penalty",
    "llm.frequency_penalty": "frequency_penalty",
    "llm.top_k": "top_k",
    "llm.chat.stop_sequences": "stop",
    "ai.prompt.toolChoice": "tool_choice",
}
# Definitions of tools: numbered attributes, and lists.
_NUMBERED_TOOLS = ("llm.tools.",)
_LISTED_TOOLS = ("tools", "gen_ai.tool.definitions", "ai.prompt.tools")
# The metadata that names the conversation of a run, and the attributes that do so for a span.
_THREADS = ("session_id", "thread_id", "conversation_id")
_CONVERSATIONS = {
    "session.id": "session_id",
    "gcp.vertex.agent.session_id": "session_id",
    "gen_ai.conversation.id": "conversation_id",
}
_USERS = ("user.id", "enduser.id")
_EXCEPTION = "exception"
_ATTACHMENTS = "langsmith.attachments"
MAX_ATTACHMENTS = 100


def parse_otlp(body: bytes, content_type: str, project: str | None) -> IngestBatch:
    """Parse a request. Runs go to the project that their span names, else to `project`. Raises Invalid."""
    spans = read_spans(body, content_type)
    places = SpanPlaces(spans)
    batch = IngestBatch(warnings=places.warnings)
    for span in spans:
        run_id = places.get_run_id(span)
        try:
            attributes = SpanAttributes(span)
            attachments = _read_attachments(attributes, run_id)
            batch.runs.append(_to_run(span, attributes, project, places))
            batch.attachments += attachments
        except Invalid as exc:
            batch.refused.append(RefusedRun(run_id, exc.problems))
            continue

        places.add_relations(span, batch)

    return batch


def _to_run(span: Span, attributes: SpanAttributes, project: str | None, places: SpanPlaces) -> RunWrite:
    """Return the run of a span. Ingest places a child below its parent once the parent is stored. Raises Invalid."""
    # What was read here does not become metadata: `_read_extra` is last.
    run_type = _read_run_type(attributes)
    name = _read_name(attributes, run_type) or span.name
    tags = _read_tags(attributes)
    project_id = _read_uuid(attributes, "langsmith.trace.session_id")
    example_id = _read_uuid(attributes, "langsmith.reference_example_id")
    session_name = attributes.read_text("langsmith.trace.session_name") or project
    inputs, outputs = read_values(attributes, run_type)

    write = RunWrite(
        id=places.get_run_id(span),
        is_post=True,
        trace_id=places.get_trace_id(span),
        parent_run_id=places.get_parent_run_id(span),
        dotted_order=places.get_dotted_order(span),
        project_id=project_id,
        session_name=to_plain_text(session_name),
        reference_example_id=example_id,
        name=to_name(name) or "span",
        run_type=run_type,
        start_time=span.start,
        end_time=span.end,
        tags=encode_tags(tags) if tags else None,
        error=to_plain_text(_read_error(span)),
        inputs=dump_user(inputs).decode(),
        outputs=dump_user(outputs).decode(),
        extra=dump_user(_read_extra(attributes, span, is_placed=places.is_placed(span))).decode(),
        events=_encode_events(span),
    )
    if write.dotted_order is None and write.parent_run_id is None and span.start:
        write.dotted_order = build_dotted_order_part(span.start, write.id)

    return write


# Fields


def _read_run_type(attributes: SpanAttributes) -> str:
    """Return the run type: as named by an attribute, else by the attributes that exist, else chain."""
    for name in _KIND_NAMES:
        kind = (attributes.read_text(name) or "").lower()
        kind = _KINDS.get(kind, kind)
        if kind in RUN_TYPES:
            return kind

    operation = attributes.values.get(_VERCEL_OPERATION)
    if isinstance(operation, str):
        return _VERCEL_KINDS.get(operation.rpartition(".")[2], "chain")
    if attributes.read_first(*_TOOLS) is not None:
        return "tool"
    if attributes.read_first(*_MODELS) is not None:
        return "llm"

    return "prompt" if _PROMPT_VARIABLES in attributes.values else "chain"


def _read_name(attributes: SpanAttributes, run_type: str) -> str | None:
    """Return the name that attributes give to the run."""
    name = attributes.read_text("langsmith.trace.name")
    tool = attributes.read_text("tool.name", "ai.toolCall.name") if run_type == "tool" else None
    return name or tool or attributes.read_text("traceloop.entity.name")


def _read_uuid(attributes: SpanAttributes, name: str) -> UUID | None:
    value = attributes.read_text(name)
    return parse_uuid(value, name) if value else None


def _read_tags(attributes: SpanAttributes) -> list[str]:
    value = attributes.read_first("langsmith.span.tags")
    parts = value if isinstance(value, list) else str(value or "").split(",")
    parts = [*parts, *attributes.read_items("tag.tags")]
    return [tag for part in parts if (tag := str(part).strip())]


def _read_extra(attributes: SpanAttributes, span: Span, *, is_placed: bool) -> dict[str, Any]:
    """Return metadata and model parameters. Call this last: every attribute that was not read becomes metadata."""
    parameters = _read_parameters(attributes)
    usage, usage_names = read_usage(attributes.values)

    attributes.read_names |= usage_names
    if is_placed:
        attributes.read_names.update(PLACES)

    metadata = decode_object(attributes.read_first("metadata")) | _read_model(attributes)

    for prefix in reversed(_METADATA):
        metadata |= {
            name: value for name, value in attributes.read_below(prefix).items() if f"{prefix}{name}" not in usage_names
        }

    _add_conversation(metadata, attributes)

    for name, value in {**span.resource, **attributes.list_unread()}.items():
        metadata.setdefault(name, value)

    if usage:
        metadata["usage_metadata"] = usage

    extra: dict[str, Any] = {"metadata": metadata}
    if parameters:
        extra["invocation_params"] = parameters

    return extra


def _read_model(attributes: SpanAttributes) -> dict[str, str]:
    """Return the metadata that names the provider and the model."""
    provider = attributes.read_text(*_PROVIDERS)
    model = attributes.read_text(*_MODELS, *_OTHER_MODELS)

    if provider is not None and _VERCEL_OPERATION in attributes.values:
        # Vercel's SDK names the interface too: openai.chat, openai.responses.
        provider = provider.partition(".")[0]

    metadata = {"ls_provider": provider, "ls_model_name": model}
    return {name: value for name, value in metadata.items() if value is not None}


def _read_parameters(attributes: SpanAttributes) -> dict[str, Any]:
    """Return the parameters of the call."""
    parameters = decode_object(attributes.read_first("llm.invocation_parameters"))
    for prefix in reversed(_REQUESTS):
        for name, value in attributes.read_below(prefix).items():
            parameters["stop" if name == "stop_sequences" else name] = value

    for name, key in _PARAMETERS.items():
        if (value := attributes.read_first(name)) is not None:
            parameters.setdefault(key, decode_text(value))

    model = attributes.read_text("gen_ai.response.model")
    if model is not None:
        parameters.setdefault("model", model)

    tool = attributes.read_text("gen_ai.tool.name", "tool.name")
    if tool is not None:
        parameters["tool_name"] = tool

    arguments = attributes.read_first("tool_arguments")
    if arguments is not None:
        parameters["tool_arguments"] = decode_text(arguments)

    functions = attributes.read_numbered("llm.request.functions.") or attributes.read_items("llm.request.functions")
    if functions:
        parameters.setdefault("functions", functions)

    tools = _read_tool_definitions(attributes)
    if tools:
        parameters.setdefault("tools", tools)

    return parameters


def _read_tool_definitions(attributes: SpanAttributes) -> list[Any]:
    numbered = [_unwrap_definition(item) for item in attributes.read_numbered(*_NUMBERED_TOOLS)]
    lists = [attributes.read_items(name) for name in _LISTED_TOOLS]
    return numbered or next((items for items in lists if items), [])


def _unwrap_definition(item: Any) -> Any:
    """Return the definition of a tool from attributes such as `llm.tools.0.tool.json_schema`."""
    tool = item.get("tool") if isinstance(item, dict) else None
    schema = tool.get("json_schema") if isinstance(tool, dict) else None
    return decode_text(schema) if schema is not None else tool or item


def _add_conversation(metadata: dict[str, Any], attributes: SpanAttributes) -> None:
    """Name the conversation and the user of a span as runs do, unless its metadata names them."""
    if not any(metadata.get(name) for name in _THREADS):
        for name, key in _CONVERSATIONS.items():
            value = attributes.read_first(name)
            if value:
                metadata.setdefault(key, value)

    user = attributes.read_first(*_USERS)
    if user is not None:
        metadata.setdefault("user_id", user)


def _read_attachments(attributes: SpanAttributes, run_id: UUID) -> list[AttachmentWrite]:
    """Return the files of a span: a JSON list of objects with name, type and content in base64. Raises Invalid."""
    items = decode_list(attributes.values.get(_ATTACHMENTS))
    if len(items) > MAX_ATTACHMENTS:
        raise Invalid.field(["body", _ATTACHMENTS], f"holds more than {MAX_ATTACHMENTS} files; send fewer")
    if not items:
        return []

    attributes.read_names.add(_ATTACHMENTS)
    return [_to_attachment(item, run_id) for item in items]


def _to_attachment(item: Any, run_id: UUID) -> AttachmentWrite:
    """Return a file of a span. Raises Invalid."""
    problem = "must be a list of objects with name, content (base64) and mime_type"
    if not isinstance(item, dict) or not isinstance(item.get("content"), str):
        raise Invalid.field(["body", _ATTACHMENTS], problem)

    try:
        data = base64.b64decode(item["content"], validate=True)
    except (binascii.Error, ValueError):
        raise Invalid.field(["body", _ATTACHMENTS], f"{problem}; a content is no base64") from None

    name = to_name(str(item.get("name") or "")) or "file"
    content_type = to_plain_text(str(item.get("mime_type") or "")) or "application/octet-stream"
    return AttachmentWrite(run_id, name, content_type.split(";")[0][:200], data)


def _read_error(span: Span) -> str | None:
    """Return the first exception of a span, else its message; None for a span without an error."""
    exception = None
    for event in span.events:
        if event.name == _EXCEPTION and exception is None:
            texts = (event.attributes.get(key) for key in ("exception.message", "exception.stacktrace"))
            exception = "\n\n".join(str(text) for text in texts if text) or None

    if exception is None and not span.is_error:
        return None

    return exception or span.message or "error"


def _encode_events(span: Span) -> str | None:
    events = [{"name": event.name, "time": event.at, "attributes": event.attributes} for event in span.events]
    return dump_user(events).decode() if events else None
