"""The seam between runs and what executes them: a request goes in, events and an outcome come out.

Everything that crosses is plain data, so that an executor may be this process, another process or another machine.
"""

from collections.abc import AsyncIterator
from typing import Any, Literal, NamedTuple, Protocol

import msgspec


class RunRequest(msgspec.Struct, kw_only=True):
    """One run of a graph, with names and defaults of the wire (contract: section 5)."""

    graph_id: str
    input: Any = None
    command: dict[str, Any] | None = None
    config: dict[str, Any] = {}
    context: dict[str, Any] | None = None
    stream_modes: list[str] = msgspec.field(default_factory=lambda: ["values"])
    stream_subgraphs: bool = False
    interrupt_before: Literal["*"] | list[str] | None = None
    interrupt_after: Literal["*"] | list[str] | None = None
    durability: Literal["sync", "async", "exit"] = "async"
    strict_resume: bool = False
    """Refuse an answer to an interrupt that does not wait, instead of ignoring it."""
    tracer: dict[str, Any] | None = None
    """The project and the example that the run is traced to, where tracing is on."""
    attempt: int = 1
    is_passing: bool = False
    """The thread was made for this run, and goes with it when the run is over."""
    resume: bool = False
    """The run was cut off after a checkpoint of its own: go on from there, without the input or the command."""


class Emitted(NamedTuple):
    """An event of a run as clients get it: its name on the wire and its JSON."""

    event: str
    data: bytes


class Outcome(msgspec.Struct, kw_only=True):
    """How a run ended."""

    values: bytes | None
    """The JSON of the final values, with `__interrupt__` where interrupts wait; None where a failed run made none."""
    interrupts: dict[str, list[dict[str, Any]]]
    """What waits for an answer by task id: `{id, value}`, and `response_schema` where the graph gives one."""
    has_next: bool
    """Whether the graph stopped before its end without failing: the thread is interrupted."""
    error: dict[str, str] | None
    """The class and the text of the exception that ended the run, as `{error, message}`."""
    is_refused: bool = False
    """The run failed before it changed anything; the thread is what it was."""


class Execution(Protocol):
    """A run in progress: iterate over it once, then read `outcome`.

    What the graph raises does not come out of the iteration: it becomes an `error` event and the outcome's `error`.
    Cancelling the task that iterates cancels the run; then there is no outcome.
    """

    outcome: Outcome | None

    def __aiter__(self) -> AsyncIterator[Emitted]: ...


class Executor(Protocol):
    """Runs graphs."""

    def execute(self, request: RunRequest) -> Execution:
        """Prepare a run, which starts when it is iterated over. Raises Invalid on a command without sense."""
        ...
