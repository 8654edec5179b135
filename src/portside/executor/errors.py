"""How the execution of a graph fails, where that is not an outcome of the run, and how errors cross a link."""

from dataclasses import asdict

from portside.executor.link import TOO_LARGE, CallFailed
from portside.kernel.errors import Conflict, Invalid, PortsideError, Problem, error_classes

FAILURE = "failure"
"""The field of an error that has the number of an error of the server, among those that it raised for the same call."""
RAISED = "raised"
"""The code of an error that is none of the kernel's: the field `type` has the name of its class."""


class GraphFailed(PortsideError):
    """The graph's own code failed while the graph was opened; the message says how."""

    code = "graph_failed"


class EmbeddingFailed(PortsideError):
    """The store could not embed an item or a query; the message says why."""

    status = 502
    code = "embedding_failed"

    @classmethod
    def of(cls, source: str, why: str) -> "EmbeddingFailed":
        """Return the error of an embedding."""
        return cls(f"the embedding {source} of the store failed: {why}")


class EventTooLarge(PortsideError):
    """An event of a run, or its result, is larger than EVENT_MAX_BYTES allows; the message names it and its size."""

    status = 413
    code = "event_too_large"


class MessageTooLarge(PortsideError):
    """A message between the server and an executor is larger than it may be; read or write less at once."""

    status = 413
    code = TOO_LARGE


class OtherLanguage(Conflict):
    """A graph in another language began this thread, and only such a graph can continue it; use a new thread."""

    code = "other_language"


class RunTimeout(Exception):
    """The run took longer than it may."""


def check_size(name: str, data: bytes, max_bytes: int) -> None:
    """Raise EventTooLarge if an event, or the result of a run, has more bytes than allowed; 0 is no limit."""
    if 0 < max_bytes < len(data):
        raise EventTooLarge(f"{name} of this run has {len(data)} bytes, more than EVENT_MAX_BYTES ({max_bytes}) allows")


def to_call_failed(error: PortsideError) -> CallFailed:
    """Return the answer to a call that stands for an error."""
    problems = {"problems": [asdict(problem) for problem in error.problems]} if isinstance(error, Invalid) else {}
    return CallFailed(error.code, error.message, {"status": error.status, "headers": error.headers, **problems})


def find_server_failure(error: Exception) -> CallFailed | None:
    """Return the answer to a call that an error of the server has ended, which the server knows by its number."""
    number = getattr(error, "portside_failure", None)
    if number is None:
        return None

    return CallFailed(RAISED, str(error), {"type": type(error).__name__, FAILURE: number})


def to_error(failure: CallFailed) -> Exception:
    """Return the error that the peer answered with; an answer with none of this process's errors as it is."""
    kind = {error_class.code: error_class for error_class in error_classes()}.get(failure.code)
    if kind is None:
        return failure

    # Constructors differ; what they set does not.
    error = kind.__new__(kind)
    PortsideError.__init__(error, failure.message, headers=failure.fields.get("headers"))
    error.status = failure.fields.get("status", kind.status)  # type: ignore[misc]

    if isinstance(error, Invalid):
        error.problems = [Problem(**problem) for problem in failure.fields.get("problems", [])]

    return error
