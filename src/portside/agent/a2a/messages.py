"""Messages of the protocol and messages of a graph: parts to content, messages to input, and thread values to history.

Files are passed on unchanged, as content blocks that LangChain's chat models accept. The server fetches nothing.

A message that arrived by the protocol has the id of its task's first run (`TASK_START`) in the graph's message. All
messages after it, up to the next such message, belong to that task. Messages that a client sent through other routes
belong to no task.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import msgspec
from msgspec import UNSET

from portside.agent.a2a.params import AgentMessage, FileContent, MessagePart, SendParams
from portside.agent.a2a.rpc import ContentTypeNotSupported, InvalidParams
from portside.agent.media import find_media, guess_type, parse_scheme
from portside.agent.types.runs import Command
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import convert
from portside.kernel.http.error_responses import describe_problems
from portside.kernel.user_json import dump_user

# Keys in the metadata of runs, and in `additional_kwargs` of the graph's messages.
TASK_START = "a2a.task_start_id"
AS_SENT = "a2a.message"
MESSAGE_ID = "a2a.message_id"
CONTEXT_ID = "a2a.context_id"
COMMAND = "command"
ALL_TOOLS = "all"
NO_TOOL = "none"
MEDIA_FAMILIES = frozenset({"text", "image", "audio", "video"})
MEDIA_TYPES = frozenset({"application/pdf", "application/json"})
BLOCK_FAMILIES = frozenset({"image", "audio", "video"})
_SCHEMES = frozenset({"http", "https"})
_GRAPH_TYPES = {"user": "human", "ROLE_USER": "human", "agent": "ai", "ROLE_AGENT": "ai"}
_ROLES = {"human": "user", "ai": "agent", "AIMessageChunk": "agent"}

Plain = dict[str, Any]


# Parts and content blocks.


def read_parts(parts: list[MessagePart]) -> list[Plain]:
    """Check parts and return them in the form of version 0.3.

    Raises InvalidParams that names the part, and ContentTypeNotSupported.
    """
    return [_read_part(part, f"params.message.parts.{index}") for index, part in enumerate(parts)]


def join_text(parts: list[Plain]) -> str | None:
    """Return the text of parts, one line for each; None where no part is text."""
    texts = [part["text"] for part in parts if part["kind"] == "text"]
    return "\n".join(texts) if texts else None


def list_data(parts: list[Plain]) -> list[Any]:
    """Return the data of the data parts."""
    return [part["data"] for part in parts if part["kind"] == "data"]


def to_content(parts: list[Plain]) -> str | list[Plain]:
    """Return parts as the content of a graph's message: text, or content blocks where one of them is a file."""
    if all(part["kind"] != "file" for part in parts):
        return "\n".join(_to_text(part) for part in parts)
    return [_content_block(part) for part in parts]


def to_parts(content: Any) -> list[Plain]:
    """Return the content of a graph's message as parts, without reasoning and tool calls."""
    if isinstance(content, str):
        return [text_part(content)] if content else []
    if not isinstance(content, list):
        return []

    return [part for block in content for part in _read_block(block)]


def text_part(text: str) -> Plain:
    """Return a text part."""
    return {"kind": "text", "text": text}


def data_part(data: Any) -> Plain:
    """Return a data part."""
    return {"kind": "data", "data": data}


def as_dict(value: Any) -> Plain:
    """Return `value` if it is an object, else an empty one: graphs may store values of any type there."""
    return value if isinstance(value, dict) else {}


def _read_part(part: MessagePart, where: str) -> Plain:
    contents = {"text": part.text, "data": part.data, "file": part.file, "raw": part.raw, "url": part.url}
    names = [name for name, value in contents.items() if value is not None and value is not UNSET]
    if part.data is None and not names:
        # Clients send null for fields that they leave out, but null alone is the data of the part.
        names = ["data"]

    if len(names) != 1:
        raise InvalidParams(f"Invalid params: {where}: a part holds exactly one of text, data and a file")

    kind = "file" if names[0] in ("raw", "url") else names[0]
    if part.kind is not None and part.kind != kind:
        raise InvalidParams(f"Invalid params: {where}: kind is {part.kind}, but the part holds {kind}")

    content = _read_file(part, where) if kind == "file" else contents[kind]
    plain: Plain = {"kind": kind, kind: content}
    if part.metadata:
        plain["metadata"] = part.metadata

    return plain


def _read_file(part: MessagePart, where: str) -> Plain:
    file = part.file or FileContent(uri=part.url, bytes=part.raw, mime_type=part.media_type, name=part.filename)
    if (file.uri is None) == (file.bytes is None):
        raise InvalidParams(f"Invalid params: {where}: a file has either a URI or bytes")
    if file.uri is not None and parse_scheme(file.uri) not in _SCHEMES:
        raise InvalidParams(f"Invalid params: {where}: the URI of a file must be a valid https:// or http:// URL")

    if file.bytes is not None:
        try:
            base64.b64decode(file.bytes, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidParams(f"Invalid params: {where}: the bytes of a file must be base64") from None

    media_type = file.mime_type or guess_type(file.name, file.uri)
    if media_type is None:
        raise InvalidParams(f"Invalid params: {where}: the media type of the file is missing")

    is_readable = media_type.split("/")[0] in MEDIA_FAMILIES or media_type.split(";")[0].strip() in MEDIA_TYPES
    if not is_readable:
        raise ContentTypeNotSupported(
            f"{where}: the agent does not read {media_type[:100]}; it reads text, images, audio, video, PDF and JSON"
        )

    members = {"uri": file.uri, "bytes": file.bytes, "mimeType": media_type, "name": file.name}
    return {key: value for key, value in members.items() if value is not None}


def _to_text(part: Plain) -> str:
    return part["text"] if part["kind"] == "text" else dump_user(part["data"]).decode()


def _content_block(part: Plain) -> Plain:
    if part["kind"] != "file":
        return {"type": "text", "text": _to_text(part)}

    file = part["file"]
    family = file["mimeType"].split("/")[0]
    block: Plain = {"type": family if family in BLOCK_FAMILIES else "file", "mime_type": file["mimeType"]}
    if "uri" in file:
        block["url"] = file["uri"]
    else:
        block["base64"] = file["bytes"]

    if "name" in file:
        block["extras"] = {"filename": file["name"]}

    return block


def _read_block(block: Any) -> Iterator[Plain]:
    if isinstance(block, str):
        yield text_part(block)
    elif isinstance(block, dict) and block.get("type") in ("text", "text-plain"):
        if isinstance(block.get("text"), str) and block["text"]:
            yield text_part(block["text"])
    elif (media := find_media(block)) is not None:
        file = {"uri": media.url} if media.url is not None else {"bytes": media.data}
        if media.mime_type:
            file["mimeType"] = media.mime_type
        if media.name:
            file["name"] = media.name

        yield {"kind": "file", "file": file}


# From a message to the input of a run, or to the answer of an interrupt.


class InputFields(msgspec.Struct, frozen=True):
    """The fields of a graph's input: whether it has messages, and the names of the others."""

    has_messages: bool
    others: frozenset[str]

    @classmethod
    def of(cls, schema: Mapping[str, Any] | None) -> "InputFields":
        """Read the schema of a graph's input. A graph without a schema is assumed to take messages."""
        if schema is None:
            return cls(True, frozenset())

        names = frozenset(schema.get("properties") or ())
        return cls("messages" in names, names - {"messages"})


def build_input(message: AgentMessage, parts: list[Plain], fields: InputFields) -> Plain:
    """Return the graph's input for a message. Raises InvalidParams that names the part the graph cannot read.

    A graph with messages gets one, under the client's own id. Data whose keys are all fields of the graph's input is
    merged into the input; other data becomes text of the message. A graph without messages accepts data alone.
    """
    return _conversation_input(message, parts, fields) if fields.has_messages else _structured_input(parts)


def mark_task(graph_input: Any, message: AgentMessage, start: str) -> None:
    """Write the id of the task's first run into the input's message.

    A graph whose schema has no messages gets its input from data parts, which may have anything under `messages`.
    """
    messages = graph_input.get("messages") if isinstance(graph_input, dict) else None
    if not isinstance(messages, list):
        return

    for candidate in messages:
        if isinstance(candidate, dict) and candidate.get("id") == message.message_id:
            candidate["additional_kwargs"] = {**as_dict(candidate.get("additional_kwargs")), TASK_START: start}


def find_command(send: SendParams, parts: list[Plain]) -> Command | None:
    """Return the command for the graph, sent beside the message or as its only data part. Raises InvalidParams."""
    if send.command is not None:
        return send.command

    data = list_data(parts)
    if len(data) != 1 or not isinstance(data[0], dict) or data[0].keys() != {COMMAND}:
        return None

    try:
        command: Command = convert(data[0][COMMAND], Command, COMMAND)
    except Invalid as exc:
        raise InvalidParams(f"Invalid params: {describe_problems(exc.problems)}") from exc

    return command


def resume_command(send: SendParams, parts: list[Plain], interrupt_ids: list[str]) -> Command:
    """Return the command that resumes a graph from these interrupts.

    Raises InvalidParams unless it is clear which interrupt the message answers. If a message has text and a command,
    the text is the answer, as on other servers of this protocol.
    """
    command = find_command(send, parts)
    text = join_text(parts)
    data = list_data(parts)

    if any(part["kind"] == "file" for part in parts):
        return Command(resume=_by_interrupt(to_content(parts), interrupt_ids))
    if text is not None:
        return Command(resume=_by_interrupt(text, interrupt_ids))

    if command is not None:
        resume = None if command.resume is None else _by_interrupt(command.resume, interrupt_ids)
        return Command(update=command.update, resume=resume, goto=command.goto)

    return Command(resume=_by_interrupt(data[0] if len(data) == 1 else data, interrupt_ids))


def _by_interrupt(answer: Any, interrupt_ids: list[str]) -> Any:
    # The interrupt is named, so that two answers which arrive together cannot answer two different interrupts.
    if isinstance(answer, dict) and answer and answer.keys() <= set(interrupt_ids):
        return answer

    if len(interrupt_ids) > 1:
        ids = ", ".join(interrupt_ids)
        raise InvalidParams(
            f"Several questions wait for an answer. Answer with a data part of the form {{id: answer}}; ids: {ids}"
        )

    return {interrupt_ids[0]: answer} if interrupt_ids else answer


def _conversation_input(message: AgentMessage, parts: list[Plain], fields: InputFields) -> Plain:
    graph_input: Plain = {}
    rest: list[Plain] = []
    for part in parts:
        if part["kind"] == "data" and _is_input(part["data"], fields):
            graph_input |= part["data"]
        else:
            rest.append(part)

    optional = {
        "metadata": message.metadata,
        "extensions": message.extensions,
        "referenceTaskIds": message.reference_task_ids,
    }
    members = {key: value for key, value in optional.items() if value}

    graph_message = {
        "type": _GRAPH_TYPES[message.role],
        "content": to_content(rest or parts),
        "id": message.message_id,
        "additional_kwargs": {AS_SENT: members} if members else {},
    }

    return {**graph_input, "messages": [graph_message]}


def _is_input(data: Any, fields: InputFields) -> bool:
    return isinstance(data, dict) and bool(data) and data.keys() <= fields.others


def _structured_input(parts: list[Plain]) -> Plain:
    graph_input: Plain = {}

    for index, part in enumerate(parts):
        where = f"Invalid params: params.message.parts.{index}"
        if part["kind"] != "data":
            raise InvalidParams(f"{where}: this agent does not read {part['kind']}; send its input as a data part")
        if not isinstance(part["data"], dict):
            raise InvalidParams(f"{where}: the input of this agent is an object")

        graph_input |= part["data"]

    return graph_input


# From the values of a thread to the history of a context.


class HistoryMessage(NamedTuple):
    """A message in the form of the protocol, and the first run of the task that it belongs to, if any."""

    message: Plain
    start: str | None


class ToolResults:
    """Which tools' results the history includes: all, none, or those that the setting names."""

    def __init__(self, setting: str) -> None:
        names = frozenset(part.strip() for part in setting.split(",")) - {""}
        self._names = None if names == {ALL_TOOLS} else names - {NO_TOOL}

    def includes(self, name: Any) -> bool:
        """Whether the history includes the results of a tool."""
        return self._names is None or (isinstance(name, str) and name in self._names)


def format_task_id(thread_id: UUID, start: str | UUID) -> str:
    """Return the id of a task: its context and its first run."""
    return f"{thread_id}:{start}"


def build_history(
    values: Any, thread_id: UUID, tool_results: ToolResults, context_id: str | None = None
) -> list[HistoryMessage]:
    """Return the messages among the values of a thread, oldest first; none where its graph has no messages."""
    messages = values.get("messages") if isinstance(values, dict) else None
    if not isinstance(messages, list):
        return []

    start: str | None = None
    history: list[HistoryMessage] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            continue

        kwargs = as_dict(message.get("additional_kwargs"))
        if message.get("type") == "human" or TASK_START in kwargs:
            start = kwargs.get(TASK_START)

        if message.get("type") == "tool":
            converted = _convert_tool_result(message, tool_results)
        else:
            converted = _convert_message(message, kwargs)

        if converted is None:
            continue

        last = history[-1] if history else None
        if last is not None and last.start == start and is_tool_results(last.message) and is_tool_results(converted):
            # Consecutive results of tools are one message.
            last.message["parts"][0]["data"]["tool_results"] += converted["parts"][0]["data"]["tool_results"]
            continue

        converted["messageId"] = str(message.get("id") or uuid5(thread_id, f"message {index}"))
        converted["contextId"] = context_id or str(thread_id)
        if start:
            converted["taskId"] = format_task_id(thread_id, start)

        history.append(HistoryMessage(converted, start))

    return history


def find_reply(history: Iterable[HistoryMessage], start: str) -> Plain | None:
    """Return the agent's last message in a task; results of tools do not count."""
    messages = [item.message for item in history if item.start == start and not is_tool_results(item.message)]
    if not messages or messages[-1]["role"] != "agent":
        return None

    return messages[-1]


def is_tool_results(message: Plain) -> bool:
    """Whether a message of the history holds results of tools."""
    part = message["parts"][0]
    return part["kind"] == "data" and isinstance(part["data"], dict) and "tool_results" in part["data"]


def _convert_message(message: Plain, kwargs: Plain) -> Plain | None:
    role = _ROLES.get(str(message.get("type")))
    parts = to_parts(message.get("content"))
    if role is None or not parts:
        return None

    return {**as_dict(kwargs.get(AS_SENT)), "kind": "message", "role": role, "parts": parts}


def _convert_tool_result(message: Plain, tool_results: ToolResults) -> Plain | None:
    if not tool_results.includes(message.get("name")):
        return None

    names = {"toolCallId": "tool_call_id", "content": "content", "name": "name", "status": "status"}
    result = {name: message.get(key) for name, key in names.items()}
    return {"kind": "message", "role": "agent", "parts": [data_part({"tool_results": [result]})]}
