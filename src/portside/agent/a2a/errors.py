"""The ways in which a call can fail, by the codes of JSON-RPC and of the protocol."""

from typing import ClassVar

from portside.agent.assistants.descriptions import GraphFailed
from portside.agent.assistants.records import AssistantNotFound
from portside.agent.runs.errors import RunNotFound, ThreadBusy
from portside.agent.threads.records import ThreadNotFound
from portside.kernel.errors import BadRequest, Invalid, PortsideError
from portside.kernel.http.refusals import in_words


class CallFailed(Exception):
    """The call failed."""

    code: ClassVar[int] = -32603
    reason: ClassVar[str] = "INTERNAL_ERROR"

    def __init__(self, message: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n", 1)[0]
        super().__init__(self.message)


class NotJson(CallFailed):
    """Parse error"""  # noqa: D415 - the words of JSON-RPC

    code, reason = -32700, "PARSE_ERROR"


class NoRequest(CallFailed):
    """Invalid Request"""  # noqa: D415 - the words of JSON-RPC

    code, reason = -32600, "INVALID_REQUEST"


class NoMethod(CallFailed):
    """Method not found"""  # noqa: D415 - the words of JSON-RPC

    code, reason = -32601, "METHOD_NOT_FOUND"


class BadParams(CallFailed):
    """Invalid params"""  # noqa: D415 - the words of JSON-RPC

    code, reason = -32602, "INVALID_PARAMS"


class NoTask(CallFailed):
    """Task not found"""  # noqa: D415 - the words of the protocol

    code, reason = -32001, "TASK_NOT_FOUND"


class NotCancelable(CallFailed):
    """Task is not cancelable in its current state"""  # noqa: D415 - the words of the protocol

    code, reason = -32002, "TASK_NOT_CANCELABLE"


class NoPush(CallFailed):
    """Push notifications are not supported; follow the task with tasks/resubscribe or ask for it with tasks/get."""

    code, reason = -32003, "PUSH_NOTIFICATION_NOT_SUPPORTED"


class Unsupported(CallFailed):
    """Operation not supported"""  # noqa: D415 - the words of the protocol

    code, reason = -32004, "UNSUPPORTED_OPERATION"


class WrongMedia(CallFailed):
    """The agent does not take or make content of this type."""

    code, reason = -32005, "CONTENT_TYPE_NOT_SUPPORTED"


class WrongVersion(CallFailed):
    """Version of the protocol not supported; 0.3 and 1.0 are."""

    code, reason = -32009, "VERSION_NOT_SUPPORTED"


def failure_of(exc: PortsideError) -> CallFailed:
    """Return the failure of a call that an error is. Raises the error where HTTP says it better: 401, 403, 5xx."""
    if isinstance(exc, Invalid):
        return BadParams(in_words(exc.problems))
    if isinstance(exc, (ThreadNotFound, RunNotFound)):
        return NoTask()
    if isinstance(exc, ThreadBusy):
        return Unsupported("The context is busy with another message; send this one again when it is done.")
    if isinstance(exc, (AssistantNotFound, BadRequest)):
        return BadParams(exc.message)
    if isinstance(exc, GraphFailed):
        return CallFailed(exc.message)
    raise exc
