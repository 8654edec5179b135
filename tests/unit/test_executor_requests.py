"""What an executor may ask its server for: to store rows of its own runs, and requests as the user it runs for."""

import contextvars
from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.agent.executors import serving
from portside.agent.executors.member import CallContext, Executor
from portside.agent.executors.serving import ExecutorRequests, Scopes
from portside.executor import messages
from portside.executor.checkpoints.backend import Rows
from portside.executor.link import CallFailed, Link, decode, encode
from portside.executor.messages import MAIN_SCOPE, CheckpointCall, CheckpointPut, ExecutorHello, HttpRequest
from tests.unit.executor_peer import Peer

RUN = uuid4()
ATTEMPT = 2
THREAD = str(uuid4())
CALL = 7


class Backend:
    """Notes the rows that it is given, and the threads that it is told to copy."""

    def __init__(self) -> None:
        self.stored: list[Rows] = []
        self.copied: list[tuple[str, str]] = []

    async def put(self, _thread_id: str, _checkpoint_ns: str, rows: Rows, **_options: Any) -> None:
        self.stored.append(rows)

    async def copy_thread(self, source: str, target: str) -> None:
        self.copied.append((source, target))


class Server:
    """The server's side of an executor that executes one attempt at a run."""

    def __init__(self) -> None:
        self.backend = Backend()
        self.scopes = Scopes(self.backend)  # type: ignore[arg-type]
        link = Link({})
        Peer(link)
        hello = ExecutorHello(protocol=1, language="Python", pid=1)
        self.executor = Executor(link, hello, name="one", heartbeat_s=60.0)
        self.executor.runs[RUN] = ATTEMPT
        requests = ExecutorRequests(self.scopes, store=None)  # type: ignore[arg-type]
        self.handlers = requests.handlers(lambda: self.executor)

    async def answer(self, method: str, message: Any) -> Any:
        return await self.handlers[method](as_received(message), None)  # type: ignore[arg-type,misc]


def as_received(message: Any) -> Any:
    """Return a message as the link delivers it."""
    _, _, body = decode(encode((0, 0, message)))
    return body


@pytest.fixture
async def server() -> Server:
    return Server()


def build_put(
    run: UUID | None = RUN, attempt: int = ATTEMPT, row_of: str = THREAD, scope: int = MAIN_SCOPE
) -> CheckpointPut:
    return CheckpointPut(
        call=CALL,
        scope=scope,
        thread_id=THREAD,
        checkpoint_ns="",
        run=None if run is None else (str(run), attempt),
        is_awaited=False,
        checkpoints=[],
        values=[],
        pieces=[(row_of, 1, 2, 3, b"piece")],
        writes=[],
        size=5,
    )


@pytest.mark.parametrize("put", [build_put(run=uuid4()), build_put(attempt=1), build_put(attempt=3)])
async def test_rows_of_a_run_that_the_executor_does_not_execute_are_refused(server: Server, put: CheckpointPut):
    with pytest.raises(CallFailed) as refused:
        await server.answer(messages.CHECKPOINTS_PUT, put)

    assert refused.value.fields["type"] == "LeaseLost"
    assert server.backend.stored == []
    await server.answer(messages.CHECKPOINTS_PUT, build_put())
    assert [list(rows.pieces) for rows in server.backend.stored] == [[(THREAD, 1, 2)]]


async def test_rows_of_another_thread_than_the_one_that_is_named_are_refused(server: Server):
    with pytest.raises(CallFailed, match="belongs to another thread"):
        await server.answer(messages.CHECKPOINTS_PUT, build_put(row_of=str(uuid4())))

    assert server.backend.stored == []


async def test_a_transaction_takes_no_rows_after_its_end(server: Server):
    inside = Backend()
    scope = server.scopes.open(inside)  # type: ignore[arg-type]
    await server.answer(messages.CHECKPOINTS_PUT, build_put(run=None, scope=scope))
    server.scopes.close(scope)
    with pytest.raises(CallFailed, match="the transaction is over"):
        await server.answer(messages.CHECKPOINTS_PUT, build_put(run=None, scope=scope))

    assert (len(inside.stored), server.backend.stored) == (1, [])


async def test_only_operations_on_checkpoints_can_be_called(server: Server):
    copy = CheckpointCall(call=CALL, scope=MAIN_SCOPE, operation="copy_thread", arguments=["a", "b"])
    await server.answer(messages.CHECKPOINTS, copy)
    assert server.backend.copied == [("a", "b")]
    other = CheckpointCall(call=CALL, scope=MAIN_SCOPE, operation="put", arguments=[])
    with pytest.raises(CallFailed) as refused:
        await server.answer(messages.CHECKPOINTS, other)

    assert refused.value.code == "unknown_operation"


class Served:
    """A call that takes its answer."""

    def send(self, _item: Any) -> None:
        pass


class Head:
    """The head of a response."""

    status = 200
    headers = ()


class Answer:
    """The body of a response, which is empty."""

    async def read(self) -> bytes:
        return b""

    async def close(self) -> None:
        pass


async def test_requests_are_made_as_the_user_of_the_call(server: Server, monkeypatch: pytest.MonkeyPatch):
    users: list[Any] = []

    async def send(request: Any) -> tuple[Head, Answer]:
        users.append(request.user)
        return Head(), Answer()

    async def request(call: int) -> None:
        head: dict[str, Any] = {"method": "GET", "path": "/threads", "raw_path": b"/threads", "query": b""}
        message = HttpRequest(call=call, headers=[], body=b"", **head)
        await serving.answer_request(server.executor, as_received(message), Served())  # type: ignore[arg-type]

    monkeypatch.setattr(serving.LOOPBACK, "send", send)
    server.executor.callers[CALL] = CallContext(contextvars.copy_context(), {"identity": "ada"})
    await request(CALL)
    await request(CALL + 1)
    assert users == [{"identity": "ada"}, None]
