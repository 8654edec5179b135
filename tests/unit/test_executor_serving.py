"""What the server does for an executor: it writes rows of the runs that the executor executes, and of no others."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from portside.agent.checkpoints.writer import LeaseLost
from portside.agent.executors.serving import ExecutorRequests, Scopes
from portside.executor import messages
from portside.executor.link import CallFailed, decode, encode
from portside.executor.messages import CheckpointPut
from tests.unit.executor_peer import CHECKPOINT_PUT

RUN = uuid4()
PUT = replace(CHECKPOINT_PUT, run=(str(RUN), 2))


class Backend:
    """Notes what it is asked to write."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    async def put(self, thread_id: str, checkpoint_ns: str, rows: Any, *, run: Any, is_awaited: bool) -> None:
        self.written.append((thread_id, run, [len(table) for table in (rows.checkpoints, rows.values, rows.writes)]))


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def put(backend: Backend) -> Any:
    """Write as an executor that executes the second attempt at the run."""
    executor: Any = SimpleNamespace(runs={RUN: 2}, note_size=lambda *_: None)
    requests = ExecutorRequests(Scopes(backend), None)  # type: ignore[arg-type]
    return lambda message: requests._put(executor, messages.read(CheckpointPut, decode(encode(message))))


async def test_rows_of_the_attempt_at_a_run_are_written(put: Any, backend: Backend) -> None:
    await put(PUT)
    assert backend.written == [("t", (str(RUN), 2), [1, 1, 1])]


@pytest.mark.parametrize("run", [(str(RUN), 1), (str(RUN), 3), (str(uuid4()), 2), ("no id", 2)])
async def test_rows_of_another_attempt_are_refused(put: Any, backend: Backend, run: tuple[str, int]) -> None:
    with pytest.raises(LeaseLost):
        await put(replace(PUT, run=run))
    assert backend.written == []


@pytest.mark.parametrize("table", ["checkpoints", "values", "pieces", "writes"])
async def test_rows_of_another_thread_are_refused(put: Any, backend: Backend, table: str) -> None:
    [row] = getattr(PUT, table)
    for other in (("another", *row[1:]), row[:-1]):
        with pytest.raises(CallFailed, match="belongs to another thread"):
            await put(replace(PUT, **{table: [row, other]}))
    assert backend.written == []
