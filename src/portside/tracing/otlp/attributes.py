"""What the attributes of a span say about a run: the conventions of several instrumentations, read into one form.

A convention that is not known stays in the run's metadata under its own name, so that nothing is lost.
"""

import re
from typing import Any
from uuid import UUID

import msgspec

from portside.tracing.fields import uuid_of
from portside.tracing.otlp.wire import Event, Span

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
_INPUT_LISTS = (r"gen_ai\.prompt\.(\d+)\.(.+)", r"llm\.input_messages\.(\d+)\.message\.(.+)")
_OUTPUT_LISTS = (r"gen_ai\.completion\.(\d+)\.(.+)", r"llm\.output_messages\.(\d+)\.message\.(.+)")
_DOCUMENTS = (r"retrieval\.documents\.(\d+)\.document\.(.+)",)
_MAX_ITEMS = 10_000
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


class Reading:
    """The attributes of one span; what is looked at is not repeated in the metadata."""

    def __init__(self, span: Span) -> None:
        self._attributes, self._events = span.attributes, span.events
        self._read: set[str] = set()

    def first(self, *names: str) -> Any:
        """Return the first of these attributes that says something."""
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
        """Return what kind of run it is: as it was called, else by what it holds, else a chain."""
        for name in _KIND_NAMES:
            kind = (self.text(name) or "").lower()
            if (kind := _KINDS.get(kind, kind)) in RUN_TYPES:
                return kind
        if self.first(*_TOOLS) is not None:
            return "tool"
        return "llm" if self.first(*_MODELS) is not None else "chain"

    def project(self) -> str | None:
        """Return the name of the project that the span names itself."""
        return self.text("langsmith.trace.session_name")

    def project_id(self) -> UUID | None:
        """Return the id of the project that the span names itself. Raises Invalid for what is no id."""
        name = "langsmith.trace.session_id"
        value = self.text(name)
        return uuid_of(value, name) if value else None

    def tags(self) -> list[str]:
        """Return the run's tags."""
        value = self.first("langsmith.span.tags")
        parts = value if isinstance(value, list) else str(value or "").split(",")
        return [tag for part in parts if (tag := str(part).strip())]

    def inputs(self) -> dict[str, Any]:
        """Return what went in."""
        messages = self._listed(_INPUT_LISTS) or self._told(_ROLES) or self._content(_PROMPT_EVENT, "gen_ai.prompt")
        return _as_object(self.first(*_INPUTS), messages)

    def outputs(self) -> dict[str, Any]:
        """Return what came out."""
        documents = self._listed(_DOCUMENTS)
        if documents:
            return {"documents": [_document(found) for found in documents]}
        messages = self._listed(_OUTPUT_LISTS) or self._choices()
        messages = messages or self._content(_COMPLETION_EVENT, "gen_ai.completion")
        return _as_object(self.first(*_OUTPUTS), messages)

    def extra(self) -> dict[str, Any]:
        """Return metadata and the parameters of the call. Ask last: all that was not read is metadata."""
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
            if isinstance(value, int | float) and not isinstance(value, bool):
                usage.setdefault(key, int(value))
        if usage and "total_tokens" not in usage:
            usage["total_tokens"] = sum(usage.values())
        reasoning = self.first(*_REASONING)
        return usage | ({"output_token_details": {"reasoning": reasoning}} if reasoning is not None else {})

    def _listed(self, patterns: tuple[str, ...]) -> list[dict[str, Any]]:
        """Gather attributes that number the items of a list, such as `gen_ai.prompt.0.role`."""
        items: dict[int, dict[str, Any]] = {}
        for name, value in self._attributes.items():
            match = _match(patterns, name)
            if match is not None and int(match[1]) < _MAX_ITEMS:
                items.setdefault(int(match[1]), {})[match[2]] = value
                self._read.add(name)
        return [items[index] for index in sorted(items)]

    def _told(self, roles: dict[str, str]) -> list[dict[str, Any]]:
        """Gather messages that were told as events, each named after its role."""
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
            content = unfold(value)
            read += [item for item in content if isinstance(item, dict)] if isinstance(content, list) else []
            if isinstance(content, str):
                read.append({"content": content})
        return read


def _match(patterns: tuple[str, ...], name: str) -> "re.Match[str] | None":
    return next((match for pattern in patterns if (match := re.fullmatch(pattern, name))), None)


def _without(event: Event, name: str) -> dict[str, Any]:
    return {key: value for key, value in event.attributes.items() if key != name}


def _document(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "page_content": found.get("content", ""),
        "metadata": _object(found.get("metadata"))
        | {k: v for k, v in found.items() if k not in {"content", "metadata"}},
        "type": "Document",
    }


def unfold(value: Any) -> Any:
    """Return what text holds when it is JSON of an object or a list, else the value itself."""
    if isinstance(value, str) and value[:1] in {"{", "["}:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def _object(value: Any) -> dict[str, Any]:
    content = unfold(value)
    return content if isinstance(content, dict) else {}


def _as_object(value: Any, messages: list[dict[str, Any]]) -> dict[str, Any]:
    if messages:
        return {"messages": messages}
    content = unfold(value)
    if isinstance(content, dict):
        return content
    if isinstance(content, list):
        return {"messages": content}
    return {} if content is None else {"value": content}
