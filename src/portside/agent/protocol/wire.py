"""The messages of the event streaming protocol: commands and their parameters, and responses."""

from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from portside.agent.types.runs import LangSmithTracer, RunConfig
from portside.kernel.codec import dump_api
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.http.json_validation import read_json
from portside.kernel.user_json import dump_user

NO_ENVELOPE = "Protocol commands must include an integer id and string method."
T = TypeVar("T", bound=msgspec.Struct)
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class CommandError(Exception):
    """A command failed: the client gets a response with one of the protocol's codes, not an HTTP error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidCommand(CommandError):
    """The message is not a command. `id` is its own id if it has one: clients find their response by it."""

    def __init__(self, message: str, value: Any) -> None:
        super().__init__("invalid_argument", message)
        command_id = value.get("id") if isinstance(value, dict) else None
        is_id = _is_id(command_id) or isinstance(command_id, str)
        self.id = command_id if is_id else None


class ProtocolCommand(NamedTuple):
    """One command of a client."""

    id: int
    method: str
    params: dict[str, Any]


def read_command(raw: bytes | str) -> ProtocolCommand:
    """Decode a command. Raises BadRequest if it is not JSON, and InvalidCommand if it is not a command."""
    try:
        value = read_json(raw if isinstance(raw, bytes) else raw.encode())
    except Invalid as exc:
        raise BadRequest("Invalid JSON body") from exc

    is_command = isinstance(value, dict) and isinstance(value.get("method"), str) and _is_id(value.get("id"))
    if not is_command:
        raise InvalidCommand(NO_ENVELOPE, value)

    params = value.get("params")
    if params is not None and not isinstance(params, dict):
        raise InvalidCommand("params must be an object", value)

    return ProtocolCommand(value["id"], value["method"], params or {})


def encode_success(command: ProtocolCommand, result: Any, applied_through_seq: int) -> bytes:
    """Encode the response to a command that succeeded."""
    meta = {"applied_through_seq": applied_through_seq}
    return dump_user({"type": "success", "id": command.id, "result": result, "meta": meta})


class CommandFailed(msgspec.Struct, kw_only=True):
    """The response to a command that failed."""

    type: Literal["error"] = "error"
    id: int | str | None
    error: str
    message: str


def encode_error(command_id: int | str | None, failure: CommandError) -> bytes:
    """Encode the response to a command that failed."""
    return dump_api(CommandFailed(id=command_id, error=failure.code, message=str(failure)))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class RunStart(msgspec.Struct):
    """Parameters of `run.start`."""

    assistant_id: str
    input: Any = None
    config: RunConfig | None = None
    metadata: dict[str, Any] | None = None
    langsmith_tracer: LangSmithTracer | None = None


class InterruptResponse(msgspec.Struct):
    """The answer to one interrupt."""

    interrupt_id: str
    response: Any = None
    namespace: list[str] | None = None


class InputRespond(msgspec.Struct):
    """Parameters of `input.respond`: one answer in fields of its own, or several, and where the run continues."""

    interrupt_id: str | None = None
    response: Any = None
    namespace: list[str] | None = None
    responses: list[InterruptResponse] | None = None
    update: dict[str, Any] | None = None
    goto: Any = None
    config: RunConfig | None = None
    metadata: dict[str, Any] | None = None

    def list_answers(self) -> list[InterruptResponse]:
        """Return all answers. Raises CommandError if there is none."""
        if self.responses:
            return self.responses
        if self.interrupt_id is None:
            raise CommandError("invalid_argument", "input.respond requires an interrupt_id, or responses.")

        return [InterruptResponse(self.interrupt_id, self.response, self.namespace)]


class Unsubscribe(msgspec.Struct):
    """Parameters of `subscription.unsubscribe`."""

    subscription_id: str


class GetTree(msgspec.Struct):
    """Parameters of `agent.getTree`."""

    run_id: str | None = None


class StateGet(msgspec.Struct):
    """Parameters of `state.get`."""

    namespace: list[str] | None = None
    keys: list[str] | None = None


class ListCheckpoints(msgspec.Struct):
    """Parameters of `state.listCheckpoints`, which returns the newest first."""

    namespace: list[str] | None = None
    limit: Limit | None = None
    before: str | None = None


class StateFork(msgspec.Struct):
    """Parameters of `state.fork`."""

    checkpoint_id: str
    input: Any = None
    config: RunConfig | None = None


def read_params(params: dict[str, Any], kind: type[T]) -> T:
    """Decode the parameters of a command. Raises CommandError that names what is wrong."""
    try:
        return msgspec.convert({key: value for key, value in params.items() if value is not None}, kind)
    except msgspec.ValidationError as exc:
        raise CommandError("invalid_argument", f"Invalid params: {exc}") from exc
