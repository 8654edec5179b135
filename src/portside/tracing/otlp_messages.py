"""Inputs and outputs of runs, from the attributes and events of OpenTelemetry's spans.

Messages stand in numbered attributes, in JSON, or in events, by the convention of the instrumentation. They keep the
fields that their instrumentation gave them; names with dots become objects and lists.
"""

from collections.abc import Iterable
from typing import Any

from portside.tracing.otlp_attributes import SpanAttributes
from portside.tracing.otlp_values import decode_object, decode_text, nested
from portside.tracing.otlp_wire import SpanEvent

_INPUT_LISTS = ("gen_ai.prompt.", "llm.input_messages.", "llm.prompts.")
_OUTPUT_LISTS = ("gen_ai.completion.", "llm.output_messages.", "llm.choices.")
_DOCUMENTS = ("retrieval.documents.", "reranker.output_documents.")
_INPUTS = (
    "input.value",
    "traceloop.entity.input",
    "gen_ai.prompt",
    "llm.input_messages",
    "prompt",
    "request_data",
    "gcp.vertex.agent.llm_request",
    "gen_ai.task.input",
    "mcp.request.argument",
    "ai.prompt",
)
_OUTPUTS = (
    "output.value",
    "traceloop.entity.output",
    "gen_ai.completion",
    "llm.output_messages",
    "response_data",
    "gcp.vertex.agent.llm_response",
    "gen_ai.task.output",
    "mcp.response.value",
    "ai.response.object",
    "ai.ranking",
)
_TOOL_INPUTS = (
    "gen_ai.tool.call.arguments",
    "tool_arguments",
    "ai.toolCall.input",
    "ai.toolCall.args",
    "gcp.vertex.agent.tool_call_args",
)
_TOOL_OUTPUTS = (
    "gen_ai.tool.call.result",
    "tool_response",
    "ai.toolCall.output",
    "ai.toolCall.result",
    "gcp.vertex.agent.tool_response",
)
# The whole conversation of an agent of Pydantic AI.
_CONVERSATIONS = ("pydantic_ai.all_messages", "all_messages_events")
_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_PROMPT_EVENT = "gen_ai.content.prompt"
_COMPLETION_EVENT = "gen_ai.content.completion"
_CHOICE_EVENT = "gen_ai.choice"
_WHOLE_MESSAGE = "gen_ai.event.content"
# Attributes of events that say nothing about their message.
_OF_EVENT = frozenset({"gen_ai.system", "gen_ai.provider.name", "gen_ai.message.index", _WHOLE_MESSAGE})


def read_values(attributes: SpanAttributes, run_type: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs and the outputs of a run."""
    history = [_message_of(event, _ROLES[event.name]) for event in attributes.events if event.name in _ROLES]
    conversation = _conversation(attributes)

    outputs = _outputs(attributes, run_type)
    if not outputs and conversation:
        outputs = {"messages": conversation}

    if not outputs:
        # The answer of a model is an event of its own, gen_ai.choice. Without one, the last messages may be the answer.
        history, answers = _split_answers(history)
        outputs = {"messages": answers} if answers else {}

    if (result := attributes.first("final_result")) is not None:
        outputs = {**outputs, "final_result": decode_text(result)}

    instructions = _instructions(attributes)
    inputs = _inputs(attributes, run_type, instructions, history)
    if conversation and inputs in ({}, {"messages": instructions}):
        inputs = {"messages": [*instructions, *_until_last_user(conversation)]}

    return inputs, outputs


# Inputs


def _inputs(
    attributes: SpanAttributes, run_type: str, instructions: list[dict[str, Any]], history: list[dict[str, Any]]
) -> dict[str, Any]:
    given = attributes.first(*_TOOL_INPUTS)
    if run_type == "tool" and given is not None:
        return _as_object(given, as_list="value")

    messages = (
        _messages(attributes.numbered(*_INPUT_LISTS))
        or _messages([*instructions, *attributes.items("gen_ai.input.messages")])
        or history
        or _contents(attributes.events, _PROMPT_EVENT, "gen_ai.prompt")
        or _messages(attributes.items("ai.prompt.messages"))
    )

    whole = attributes.first("gen_ai.input.messages", "ai.prompt.messages", *_INPUTS)
    if messages:
        return {"messages": messages}
    if whole is not None:
        return _as_object(whole)

    return _searched(attributes) or _embedded(attributes) or ({} if given is None else _as_object(given))


def _instructions(attributes: SpanAttributes) -> list[dict[str, Any]]:
    """Return the instructions of a model as a message; the semantic conventions have them beside the messages."""
    parts = attributes.items("gen_ai.system_instructions")
    if parts:
        return [{"role": "system", "parts": parts}]

    text = attributes.first("gen_ai.system_instructions")
    return [] if text is None else [{"role": "system", "content": decode_text(text)}]


def _searched(attributes: SpanAttributes) -> dict[str, Any]:
    """Return the query of a search, and the documents that were to be ranked."""
    query = attributes.first("gen_ai.retrieval.query.text", "reranker.query")
    documents = attributes.numbered("reranker.input_documents.") or attributes.items("ai.documents")
    found = {} if query is None else {"query": query}
    return {**found, "documents": [_document(item) for item in documents]} if documents else found


def _embedded(attributes: SpanAttributes) -> dict[str, Any]:
    """Return the texts that were embedded."""
    items = [_inside(item, "embedding") for item in attributes.numbered("embedding.embeddings.")]
    texts = [item["text"] for item in items if _below(item, "text") is not None]
    texts = texts or attributes.items("ai.values")
    if texts:
        return {"texts": texts}

    text = attributes.first("ai.value")
    return {} if text is None else {"texts": [decode_text(text)]}


# Outputs


def _outputs(attributes: SpanAttributes, run_type: str) -> dict[str, Any]:
    given = attributes.first(*_TOOL_OUTPUTS)
    if run_type == "tool" and given is not None:
        return _as_object(given, as_list="value")

    documents = attributes.numbered(*_DOCUMENTS) or attributes.items("gen_ai.retrieval.documents")
    if documents:
        return {"documents": [_document(item) for item in documents]}

    messages = (
        _messages(attributes.numbered(*_OUTPUT_LISTS))
        or _messages(attributes.items("gen_ai.output.messages"))
        or [_choice(event) for event in attributes.events if event.name == _CHOICE_EVENT]
        or _contents(attributes.events, _COMPLETION_EVENT, "gen_ai.completion")
        or _answer_of_vercel(attributes)
    )

    whole = attributes.first("gen_ai.output.messages", *_OUTPUTS)
    if messages:
        return {"messages": messages}
    if whole is not None:
        return _as_object(whole)

    return _vectors(attributes) or ({} if given is None else _as_object(given))


def _vectors(attributes: SpanAttributes) -> dict[str, Any]:
    """Return the vectors of texts that were embedded."""
    items = [_inside(item, "embedding") for item in attributes.numbered("embedding.embeddings.")]
    vectors = [item["vector"] for item in items if _below(item, "vector") is not None]
    vectors = vectors or attributes.items("ai.embeddings") or attributes.items("ai.embedding")
    return {"embeddings": vectors} if vectors else {}


def _answer_of_vercel(attributes: SpanAttributes) -> list[dict[str, Any]]:
    """Return the answer that Vercel's SDK has in attributes: text, reasoning, calls of tools."""
    text = attributes.first("ai.response.text")
    reasoning = attributes.first("ai.response.reasoning")
    calls = attributes.items("ai.response.toolCalls")
    if text is None and reasoning is None and not calls:
        return []

    message = {"role": "assistant", "content": text or ""}
    if reasoning is not None:
        message["reasoning"] = reasoning

    return [{**message, "tool_calls": calls} if calls else message]


def _choice(event: SpanEvent) -> dict[str, Any]:
    return _message_of(event, "assistant")


# Messages


def _message_of(event: SpanEvent, role: str) -> dict[str, Any]:
    """Return the message of an event that is named after its role, or of a choice."""
    fields = nested({name: value for name, value in event.attributes.items() if name not in _OF_EVENT})
    whole = decode_object(event.attributes.get(_WHOLE_MESSAGE))
    if role == "tool" and "id" in fields:
        fields.setdefault("tool_call_id", fields["id"])

    return {"role": role, **_message(whole), **_message(fields)}


def _messages(items: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the messages of a list; text is the content of a message."""
    found = []
    for item in items:
        if isinstance(item, dict):
            found.append(_message(item))
        elif item is not None:
            found.append({"content": item})

    return found


def _message(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the objects that conventions put around it and its parts."""
    message: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in {"message", "prompt", "completion"}:
            message[name] = value
            continue

        around = decode_text(value)
        if isinstance(around, dict):
            message |= around
        else:
            message["content"] = around

    if isinstance(message.get("content"), str):
        message["content"] = _content(message["content"])

    if isinstance(calls := decode_text(message.get("tool_calls")), list):
        message["tool_calls"] = [_inside(call, "tool_call") for call in calls]

    if isinstance(contents := message.get("contents"), list) and "content" not in message:
        del message["contents"]
        message["content"] = [_inside(part, "message_content") for part in contents]

    return message


def _content(text: str) -> Any:
    """Return the content of a message: parts that were written as JSON, else the text itself."""
    content = decode_text(text)
    is_parts = isinstance(content, list) and content and all(isinstance(part, dict) for part in content)
    return content if is_parts else text


def _contents(events: Iterable[SpanEvent], event_name: str, attribute: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for event in events:
        content = decode_text(event.attributes.get(attribute)) if event.name == event_name else None
        if isinstance(content, list):
            found += [item for item in content if isinstance(item, dict)]
        elif isinstance(content, dict):
            found += _messages(content["messages"]) if isinstance(content.get("messages"), list) else [content]
        elif isinstance(content, str):
            found.append({"content": content})

    return found


def _conversation(attributes: SpanAttributes) -> list[dict[str, Any]]:
    found = (attributes.items(name) for name in _CONVERSATIONS)
    return _messages(next((items for items in found if items), ()))


def _split_answers(history: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split messages before the assistant's messages at the end."""
    end = len(history)
    while end and history[end - 1].get("role") == "assistant":
        end -= 1

    return history[:end], history[end:]


def _until_last_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last = max((at for at, message in enumerate(messages) if _is_of_user(message)), default=-1)
    return messages[: last + 1]


def _is_of_user(message: dict[str, Any]) -> bool:
    """Whether a message is of a person; some conventions have results of tools in messages of the user."""
    parts = message.get("parts")
    has_results = isinstance(parts, list) and any(_below(part, "type") == "tool_call_response" for part in parts)
    return message.get("role") == "user" and not has_results


# Documents and other values


def _document(item: Any) -> dict[str, Any]:
    found = _inside(item, "document")
    if not isinstance(found, dict):
        return {"page_content": found, "metadata": {}, "type": "Document"}

    others = {name: value for name, value in found.items() if name not in {"content", "metadata", "page_content"}}
    return {
        "page_content": found.get("content", found.get("page_content", "")),
        "metadata": decode_object(found.get("metadata")) | others,
        "type": "Document",
    }


def _below(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else None


def _inside(item: Any, name: str) -> Any:
    """Return an object without one that a convention puts around it: `{"tool_call": {"id": 1}}`."""
    inside = _below(item, name)
    if not isinstance(inside, dict):
        return item

    return {**{key: value for key, value in item.items() if key != name}, **inside}


def _as_object(value: Any, *, as_list: str = "messages") -> dict[str, Any]:
    content = decode_text(value)
    if isinstance(content, dict):
        return content
    if isinstance(content, list):
        return {as_list: content}

    return {"value": content}
