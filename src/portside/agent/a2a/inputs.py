"""From a message to what a run is made with: input for a graph, or the answer to what it asked.

A graph that keeps messages is given one, with the client's own id for it; data whose keys are all fields of its input
goes beside it, and other data is told as text. A graph that keeps none takes data alone, as its input.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from portside.agent.a2a.conversations import AS_SENT, TASK_START
from portside.agent.a2a.errors import BadParams
from portside.agent.a2a.params import Message, Send
from portside.agent.a2a.parts import content_of, data_of, text_of
from portside.agent.types.runs import Command
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import convert
from portside.kernel.http.refusals import in_words

_TYPES = {"user": "human", "ROLE_USER": "human", "agent": "ai", "ROLE_AGENT": "ai"}
COMMAND = "command"

Plain = dict[str, Any]


class Fields(msgspec.Struct, frozen=True):
    """What a graph takes: whether messages, and which fields beside them."""

    takes_messages: bool
    others: frozenset[str]

    @classmethod
    def of(cls, schema: Mapping[str, Any] | None) -> "Fields":
        """Read the schema of a graph's input; one that could not be made is taken to be that of a conversation."""
        if schema is None:
            return cls(True, frozenset())
        names = frozenset(schema.get("properties") or ())
        return cls("messages" in names, names - {"messages"})


def input_of(message: Message, parts: list[Plain], fields: Fields) -> Plain:
    """Return the input that a message is for a graph. Raises BadParams that names what the graph does not take."""
    return _conversing(message, parts, fields) if fields.takes_messages else _structured(parts)


def label(given: Any, message: Message, start: str) -> None:
    """Write into the message of an input to which task it belongs, and what else it came with."""
    for one in given.get("messages", ()) if isinstance(given, dict) else ():
        if isinstance(one, dict) and one.get("id") == message.message_id:
            one["additional_kwargs"] = {**one.get("additional_kwargs", {}), TASK_START: start}


def command_of(send: Send, parts: list[Plain]) -> Command | None:
    """Return the command that a message brings: beside it, or as its only data. Raises BadParams."""
    if send.command is not None:
        return send.command
    data = data_of(parts)
    if len(data) != 1 or not isinstance(data[0], dict) or data[0].keys() != {COMMAND}:
        return None
    try:
        command: Command = convert(data[0][COMMAND], Command, COMMAND)
    except Invalid as exc:
        raise BadParams(f"Invalid params: {in_words(exc.problems)}") from exc
    return command


def answer_with(send: Send, parts: list[Plain], questions: list[str]) -> Command:
    """Return what resumes a graph that asked these questions. Raises BadParams unless it is clear which is answered.

    Text comes before a command, as it does for other servers of this protocol.
    """
    command = command_of(send, parts)
    text, data = text_of(parts), data_of(parts)
    if any(part["kind"] == "file" for part in parts):
        return Command(resume=_addressed(content_of(parts), questions))
    if text is not None:
        return Command(resume=_addressed(text, questions))
    if command is not None:
        resume = None if command.resume is None else _addressed(command.resume, questions)
        return Command(update=command.update, resume=resume, goto=command.goto)
    return Command(resume=_addressed(data[0] if len(data) == 1 else data, questions))


def _addressed(answer: Any, questions: list[str]) -> Any:
    """Name the question that is answered, so that it is answered once whoever else answers it."""
    if isinstance(answer, dict) and answer and answer.keys() <= set(questions):
        return answer
    if len(questions) > 1:
        ids = ", ".join(questions)
        raise BadParams(f"Several questions wait: answer with a data part of the form {{id: answer}}; ids: {ids}")
    return {questions[0]: answer} if questions else answer


def _conversing(message: Message, parts: list[Plain], fields: Fields) -> Plain:
    given: Plain = {}
    for part in parts:
        if part["kind"] == "data" and _is_input(part["data"], fields):
            given |= part["data"]
    rest = [part for part in parts if not (part["kind"] == "data" and _is_input(part["data"], fields))]
    kept = {"metadata": message.metadata, "extensions": message.extensions}
    kept |= {"referenceTaskIds": message.reference_task_ids}
    sent = {key: value for key, value in kept.items() if value}
    said = {
        "type": _TYPES[message.role],
        "content": content_of(rest or parts),
        "id": message.message_id,
        "additional_kwargs": {AS_SENT: sent} if sent else {},
    }
    return {**given, "messages": [said]}


def _is_input(data: Any, fields: Fields) -> bool:
    return isinstance(data, dict) and bool(data) and data.keys() <= fields.others


def _structured(parts: list[Plain]) -> Plain:
    given: Plain = {}
    for place, part in enumerate(parts):
        where = f"Invalid params: params.message.parts.{place}"
        if part["kind"] != "data":
            raise BadParams(f"{where}: this agent takes no {part['kind']}; send its input as a data part")
        if not isinstance(part["data"], dict):
            raise BadParams(f"{where}: the input of this agent is an object")
        given |= part["data"]
    return given
