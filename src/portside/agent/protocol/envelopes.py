"""How commands and their answers are written down (contract: section 13.1)."""

from typing import Any, NamedTuple

from portside.agent.protocol.errors import CommandFailed
from portside.kernel.codec import dump_user
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.http.vetting import read_json

NO_ENVELOPE = "Protocol commands must include an integer id and string method."


class NoCommand(CommandFailed):
    """What was sent is no command; `id` is what it calls itself, for clients that look for their answer by it."""

    def __init__(self, message: str, value: Any) -> None:
        super().__init__("invalid_argument", message)
        given = value.get("id") if isinstance(value, dict) else None
        self.id = given if _is_id(given) or isinstance(given, str) else None


class Command(NamedTuple):
    """One command of a client."""

    id: int
    method: str
    params: dict[str, Any]


def read_command(raw: bytes | str) -> Command:
    """Read a command. Raises BadRequest for what is no JSON, and NoCommand for what is no command."""
    try:
        value = read_json(raw if isinstance(raw, bytes) else raw.encode())
    except Invalid as exc:
        raise BadRequest("Invalid JSON body") from exc
    if not isinstance(value, dict) or not isinstance(value.get("method"), str) or not _is_id(value.get("id")):
        raise NoCommand(NO_ENVELOPE, value)
    params = value.get("params")
    if params is not None and not isinstance(params, dict):
        raise NoCommand("params must be an object", value)
    return Command(value["id"], value["method"], params or {})


def answer(command: Command, result: Any, applied_through_seq: int) -> bytes:
    """Write down that a command was done."""
    meta = {"applied_through_seq": applied_through_seq}
    return dump_user({"type": "success", "id": command.id, "result": result, "meta": meta})


def refuse(command_id: int | str | None, failure: CommandFailed) -> bytes:
    """Write down that a command was not done, and why."""
    return dump_user({"type": "error", "id": command_id, "error": failure.code, "message": str(failure)})


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
