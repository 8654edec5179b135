"""What each command may say (spec: the protocol's params)."""

from typing import Annotated, Any, TypeVar

import msgspec

from portside.agent.protocol.errors import CommandFailed
from portside.agent.types.runs import LangSmithTracer, RunConfig

T = TypeVar("T", bound=msgspec.Struct)
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class RunStart(msgspec.Struct):
    """What to run."""

    assistant_id: str
    input: Any = None
    config: RunConfig | None = None
    metadata: dict[str, Any] | None = None
    langsmith_tracer: LangSmithTracer | None = None


class Answer(msgspec.Struct):
    """An answer to one interrupt."""

    interrupt_id: str
    response: Any = None
    namespace: list[str] | None = None


class InputRespond(msgspec.Struct):
    """Answers to interrupts, one by its own fields or several, and where to go on."""

    interrupt_id: str | None = None
    response: Any = None
    namespace: list[str] | None = None
    responses: list[Answer] | None = None
    update: dict[str, Any] | None = None
    goto: Any = None
    config: RunConfig | None = None
    metadata: dict[str, Any] | None = None

    def answers(self) -> list[Answer]:
        """Return all answers. Raises CommandFailed when there is none."""
        if self.responses:
            return self.responses
        if self.interrupt_id is None:
            raise CommandFailed("invalid_argument", "input.respond requires an interrupt_id, or responses.")
        return [Answer(self.interrupt_id, self.response, self.namespace)]


class Unsubscribe(msgspec.Struct):
    """Which subscription to end."""

    subscription_id: str


class GetTree(msgspec.Struct):
    """Whose agents to show."""

    run_id: str | None = None


class StateGet(msgspec.Struct):
    """Which part of the state to read."""

    namespace: list[str] | None = None
    keys: list[str] | None = None


class ListCheckpoints(msgspec.Struct):
    """Which checkpoints to list, newest first."""

    namespace: list[str] | None = None
    limit: Limit | None = None
    before: str | None = None


class StateFork(msgspec.Struct):
    """Where to go on from, and with what."""

    checkpoint_id: str
    input: Any = None
    config: RunConfig | None = None


def read_params(params: dict[str, Any], kind: type[T]) -> T:
    """Read a command's params. Raises CommandFailed that names what is wrong."""
    try:
        return msgspec.convert({key: value for key, value in params.items() if value is not None}, kind)
    except msgspec.ValidationError as exc:
        raise CommandFailed("invalid_argument", f"Invalid params: {exc}") from exc
