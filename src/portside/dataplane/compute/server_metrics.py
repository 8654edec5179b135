"""The metrics that a listener reads from the agent servers that it runs."""

import contextlib
from collections.abc import Iterable
from uuid import UUID

import msgspec

from portside.dataplane.compute.sockets import get

# How often a server without runs is asked.
ASK_IDLE_EVERY_S = 20.0


class QueueMetrics(msgspec.Struct):
    """The runs in a server's database; None before a server answered."""

    n_pending: int | None = None
    n_running: int | None = None
    pending_unblocked_runs_wait_time_max_secs: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is no pending or running run."""
        return self.n_pending == 0 and self.n_running == 0


class ServerMetrics(msgspec.Struct):
    """The part of a server's metrics that a listener reads. All replicas share the queue in their database."""

    # Seconds without a request and a run; None from servers that do not say so.
    idle_s: float | None = None
    queue: QueueMetrics = msgspec.field(default_factory=QueueMetrics)
    problems: list[str] = []
    threads_by_revision: dict[UUID, int] | None = None


async def read_metrics(ports: Iterable[int]) -> ServerMetrics | None:
    """Read the metrics of the first server that answers, of some ports of this machine."""
    for port in ports:
        response = await get(port, "/metrics?format=json")
        if response is not None and response[0] == 200:
            try:
                return msgspec.json.decode(response[1], type=ServerMetrics)
            except msgspec.MsgspecError:
                return None

    return None


class _ServerInfo(msgspec.Struct):
    version: str = ""


async def read_version(port: int) -> str | None:
    """Return the version of the server at a port of this machine, or None if it does not say."""
    response = await get(port, "/info")
    with contextlib.suppress(msgspec.MsgspecError):
        if response is not None and response[0] == 200:
            return msgspec.json.decode(response[1], type=_ServerInfo).version[:200] or None

    return None


def join_problems(answers: Iterable[ServerMetrics]) -> str | None:
    """Return what servers say is wrong, each message once; None when all is well."""
    return " ".join(dict.fromkeys(message for answer in answers for message in answer.problems)) or None
