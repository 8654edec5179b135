"""Inputs and outputs of runs, from the attributes and events of OpenTelemetry's spans.

Messages stand in numbered attributes, in JSON, or in events, by the convention of the instrumentation. They keep the
fields that their instrumentation gave them; names with dots become objects and lists.
"""

from collections.abc import Iterable
from typing import Any

from portside.tracing.otlp_attributes import SpanAttributes
from portside.tracing.otlp_values import decode_object, decode_text, nest
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
_EVENT_FIELDS = frozenset({"gen_ai.system", "gen_ai.provider.name", "gen_ai.message.index", _WHOLE_MESSAGE})


def read_values(attributes: SpanAttributes, run_type: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs and the outputs of a run."""
    history = [_read_event(event, _ROLES[event.name]) for event in attributes.events if event.name in _ROLES]
    conversation = _read_conversation(attributes)

    outputs = _read_outputs(attributes, run_type)
    if not outputs and conversation:
        outputs = {"messages": conversation}

    if not outputs:
        # The answer of a model is an event of its own, gen_ai.choice. Without one, the last messages may be the answer.
        history, answers = _split_answers(history)
        outputs = {"messages": answers} if answers else {}

    result = attributes.read_first("final_result")
    if result is not None:
        outputs = {**outputs, "final_result": decode_text(result)}

    instructions = _read_instructions(attributes)
    inputs = _read_inputs(attributes, run_type, instructions, history)
    if conversation and inputs in ({}, {"messages": instructions}):
        inputs = {"messages": [*instructions, *_cut_after_last_user(conversation)]}

    return inputs, outputs


# Inputs


def _read_inputs(
    attributes: SpanAttributes, run_type: str, instructions: list[dict[str, Any]], history: list[dict[str, Any]]
) -> dict[str, Any]:
    tool_input = attributes.read_first(*_TOOL_INPUTS)
    if run_type == "tool" and tool_input is not None:
        return _to_object(tool_input, list_key="value")

    messages = (
        _to_messages(attributes.read_numbered(*_INPUT_LISTS))
        or _to_messages([*instructions, *attributes.read_items("gen_ai.input.messages")])
        or history
        or _read_contents(attributes.events, _PROMPT_EVENT, "gen_ai.prompt")
        or _to_messages(attributes.read_items("ai.prompt.messages"))
    )

    whole = attributes.read_first("gen_ai.input.messages", "ai.prompt.messages", *_INPUTS)
    if messages:
        return {"messages": messages}
    if whole is not None:
        return _to_object(whole)

    return (
        _read_search(attributes)
        or _read_embedded_texts(attributes)
        or ({} if tool_input is None else _to_object(tool_input))
    )


def _read_instructions(attributes: SpanAttributes) -> list[dict[str, Any]]:
    """Return the instructions of a model as a message; the semantic conventions have them beside the messages."""
    parts = attributes.read_items("gen_ai.system_instructions")
    if parts:
        return [{"role": "system", "parts": parts}]

    text = attributes.read_first("gen_ai.system_instructions")
    return [] if text is None else [{"role": "system", "content": decode_text(text)}]


def _read_search(attributes: SpanAttributes) -> dict[str, Any]:
    """Return the query of a search, and the documents that were to be ranked."""
    query = attributes.read_first("gen_ai.retrieval.query.text", "reranker.query")
    documents = attributes.read_numbered("reranker.input_documents.") or attributes.read_items("ai.documents")
    search: dict[str, Any] = {} if query is None else {"query": query}
    if documents:
        search["documents"] = [_to_document(item) for item in documents]

    return search


def _read_embedded_texts(attributes: SpanAttributes) -> dict[str, Any]:
    """Return the texts that were embedded."""
    items = [_unwrap(item, "embedding") for item in attributes.read_numbered("embedding.embeddings.")]
    texts = [item["text"] for item in items if _get(item, "text") is not None]
    texts = texts or attributes.read_items("ai.values")
    if texts:
        return {"texts": texts}

    text = attributes.read_first("ai.value")
    return {} if text is None else {"texts": [decode_text(text)]}


# Outputs


def _read_outputs(attributes: SpanAttributes, run_type: str) -> dict[str, Any]:
    tool_output = attributes.read_first(*_TOOL_OUTPUTS)
    if run_type == "tool" and tool_output is not None:
        return _to_object(tool_output, list_key="value")

    documents = attributes.read_numbered(*_DOCUMENTS) or attributes.read_items("gen_ai.retrieval.documents")
    if documents:
        return {"documents": [_to_document(item) for item in documents]}

    messages = (
        _to_messages(attributes.read_numbered(*_OUTPUT_LISTS))
        or _to_messages(attributes.read_items("gen_ai.output.messages"))
        or [_read_choice(event) for event in attributes.events if event.name == _CHOICE_EVENT]
        or _read_contents(attributes.events, _COMPLETION_EVENT, "gen_ai.completion")
        or _read_vercel_answer(attributes)
    )

    whole = attributes.read_first("gen_ai.output.messages", *_OUTPUTS)
    if messages:
        return {"messages": messages}
    if whole is not None:
        return _to_object(whole)

    return _read_vectors(attributes) or ({} if tool_output is None else _to_object(tool_output))


def _read_vectors(attributes: SpanAttributes) -> dict[str, Any]:
    """Return the vectors of texts that were embedded."""
    items = [_unwrap(item, "embedding") for item in attributes.read_numbered("embedding.embeddings.")]
    vectors = [item["vector"] for item in items if _get(item, "vector") is not None]
    vectors = vectors or attributes.read_items("ai.embeddings") or attributes.read_items("ai.embedding")
    return {"embeddings": vectors} if vectors else {}


def _read_vercel_answer(attributes: SpanAttributes) -> list[dict[str, Any]]:
    """Return the answer that Vercel's SDK has in attributes: text, reasoning, calls of tools."""
    text = attributes.read_first("ai.response.text")
    reasoning = attributes.read_first("ai.response.reasoning")
    calls = attributes.read_items("ai.response.toolCalls")
    if text is None and reasoning is None and not calls:
        return []

    message: dict[str, Any] = {"role": "assistant", "content": text or ""}
    if reasoning is not None:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls

    return [message]


def _read_choice(event: SpanEvent) -> dict[str, Any]:
    return _read_event(event, "assistant")


# Messages


def _read_event(event: SpanEvent, role: str) -> dict[str, Any]:
    """Return the message of an event that is named after its role, or of a choice."""
    fields = nest({name: value for name, value in event.attributes.items() if name not in _EVENT_FIELDS})
    whole = decode_object(event.attributes.get(_WHOLE_MESSAGE))
    if role == "tool" and "id" in fields:
        fields.setdefault("tool_call_id", fields["id"])

    return {"role": role, **_unwrap_message(whole), **_unwrap_message(fields)}


def _to_messages(items: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the messages of a list; text is the content of a message."""
    messages = []
    for item in items:
        if isinstance(item, dict):
            messages.append(_unwrap_message(item))
        elif item is not None:
            messages.append({"content": item})

    return messages


def _unwrap_message(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the objects that conventions put around it and its parts."""
    message: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in {"message", "prompt", "completion"}:
            message[name] = value
            continue

        wrapper = decode_text(value)
        if isinstance(wrapper, dict):
            message |= wrapper
        else:
            message["content"] = wrapper

    if isinstance(message.get("content"), str):
        message["content"] = _decode_content(message["content"])

    calls = decode_text(message.get("tool_calls"))
    if isinstance(calls, list):
        message["tool_calls"] = [_unwrap(call, "tool_call") for call in calls]

    contents = message.get("contents")
    if isinstance(contents, list) and "content" not in message:
        del message["contents"]
        message["content"] = [_unwrap(part, "message_content") for part in contents]

    return message


def _decode_content(text: str) -> Any:
    """Return the content of a message: parts that were written as JSON, else the text itself."""
    content = decode_text(text)
    is_parts = isinstance(content, list) and content and all(isinstance(part, dict) for part in content)
    return content if is_parts else text


def _read_contents(events: Iterable[SpanEvent], event_name: str, attribute: str) -> list[dict[str, Any]]:
    """Return the messages that events of a name hold in an attribute: one, a list, or an object with a list."""
    messages: list[dict[str, Any]] = []
    for event in events:
        if event.name != event_name:
            continue

        content = decode_text(event.attributes.get(attribute))
        if isinstance(content, list):
            messages += [item for item in content if isinstance(item, dict)]
        elif isinstance(content, dict) and isinstance(content.get("messages"), list):
            messages += _to_messages(content["messages"])
        elif isinstance(content, dict):
            messages.append(content)
        elif isinstance(content, str):
            messages.append({"content": content})

    return messages


def _read_conversation(attributes: SpanAttributes) -> list[dict[str, Any]]:
    """Return the whole conversation of an agent, questions and answers; empty where no attribute has one."""
    lists = (attributes.read_items(name) for name in _CONVERSATIONS)
    return _to_messages(next((items for items in lists if items), ()))


def _split_answers(history: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split messages before the assistant's messages at the end."""
    end = len(history)
    while end and history[end - 1].get("role") == "assistant":
        end -= 1

    return history[:end], history[end:]


def _cut_after_last_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages up to the last one of a person."""
    last = max((index for index, message in enumerate(messages) if _is_from_user(message)), default=-1)
    return messages[: last + 1]


def _is_from_user(message: dict[str, Any]) -> bool:
    """Whether a message is of a person; some conventions have results of tools in messages of the user."""
    parts = message.get("parts")
    has_results = isinstance(parts, list) and any(_get(part, "type") == "tool_call_response" for part in parts)
    return message.get("role") == "user" and not has_results


# Documents and other values


def _to_document(item: Any) -> dict[str, Any]:
    """Return a document as LangChain writes it."""
    fields = _unwrap(item, "document")
    if not isinstance(fields, dict):
        return {"page_content": fields, "metadata": {}, "type": "Document"}

    others = {name: value for name, value in fields.items() if name not in {"content", "metadata", "page_content"}}
    return {
        "page_content": fields.get("content", fields.get("page_content", "")),
        "metadata": decode_object(fields.get("metadata")) | others,
        "type": "Document",
    }


def _get(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else None


def _unwrap(item: Any, name: str) -> Any:
    """Return an object without one that a convention puts around it: `{"tool_call": {"id": 1}}`."""
    content = _get(item, name)
    if not isinstance(content, dict):
        return item

    return {**{key: value for key, value in item.items() if key != name}, **content}


def _to_object(value: Any, *, list_key: str = "messages") -> dict[str, Any]:
    """Return an attribute as an object: a list under `list_key`, any other value under `value`."""
    content = decode_text(value)
    if isinstance(content, dict):
        return content
    if isinstance(content, list):
        return {list_key: content}

    return {"value": content}
