"""How the execution of a graph fails, where that is not an outcome of the run, and how errors cross a link."""

from dataclasses import asdict

from portside.executor.link import CallFailed
from portside.kernel.errors import Conflict, Invalid, PortsideError, Problem, error_classes


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


class OtherLanguage(Conflict):
    """A graph in another language began this thread, and only such a graph can continue it; use a new thread."""

    code = "other_language"


class RunTimeout(Exception):
    """The run took longer than it may."""


def failure_of(error: PortsideError) -> CallFailed:
    """Return the answer to a call that stands for an error."""
    problems = {"problems": [asdict(problem) for problem in error.problems]} if isinstance(error, Invalid) else {}
    return CallFailed(error.code, error.message, {"status": error.status, "headers": error.headers, **problems})


def error_of(failed: CallFailed) -> Exception:
    """Return the error that the peer answered with; an answer with none of this process's errors as it is."""
    known = {each.code: each for each in error_classes()}.get(failed.code)
    if known is None:
        return failed
    # Constructors differ; what they set does not.
    error = known.__new__(known)
    PortsideError.__init__(error, failed.message, headers=failed.fields.get("headers"))
    error.status = failed.fields.get("status", known.status)  # type: ignore[misc]
    if isinstance(error, Invalid):
        error.problems = [Problem(**problem) for problem in failed.fields.get("problems", [])]
    return error
