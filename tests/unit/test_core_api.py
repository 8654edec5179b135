"""The core API: messages arrive as they were sent, with the types that they name; no peer breaks more than its own."""

import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast, get_type_hints
from uuid import uuid4

import grpc
import httpx2
import pytest
from grpc.aio import EOF
from hypothesis import given
from hypothesis import strategies as st

from portside.agent.config import load_config
from portside.agent.executors.core_api import bridge, executor_tier
from portside.agent.executors.core_api import session as sessions
from portside.agent.executors.core_api.bridge import Bridge, ConnectionLost
from portside.agent.executors.core_api.credentials import PeerCredentials, read_credentials
from portside.agent.executors.core_api.executor_tier import _build_operators_app
from portside.agent.executors.core_api.listener import ConnectedExecutor, ExecutorListener
from portside.agent.executors.core_api.session import GO_AWAY, MAX_FRAME_BYTES, PIECE_BYTES, PeerSession
from portside.agent.executors.member import Executor, ExecutorFailed, read_hello
from portside.agent.executors.remote_graphs import _EventReceiver
from portside.agent.settings import AgentSettings
from portside.executor import link as links
from portside.executor import messages, requests
from portside.executor.checkpoints.backend import CheckpointRow, PieceRow, ValueRow, WriteRow
from portside.executor.link import HEADER_BYTES, CallFailed, Link, LinkLimits, decode, encode
from portside.executor.messages import PROTOCOL, ExecutorHello, GraphCall, Pong, ServerHello
from portside.executor.requests import GraphFacts, HistoryRead, Outcome, RunRequest, Schemas, StateRead
from portside.executor.type_checks import build_type_check
from portside.kernel.errors import UserMistake
from tests.conftest import eventually
from tests.unit.executor_peer import CHECKPOINT_PUT, Peer

KEY = "0123456789abcdef0123456789abcdef"


def on_a_link(body: Any) -> Any:
    return decode(encode(body))


RUN = RunRequest(
    graph_id="agent",
    input={"deep": [None, True, 1.5, b"\x00", 2**70, {"a": "ü"}]},
    command=None,
    config={"configurable": {"thread_id": "t", "run_id": "r"}, "metadata": {}},
    stream_modes=["values", "custom"],
    interrupt_before="*",
    interrupt_after=["one"],
    attempt=3,
)
ROWS = {"checkpoints": CheckpointRow, "values": ValueRow, "pieces": PieceRow, "writes": WriteRow}
HELLO = ExecutorHello(
    protocol=1,
    language="Python",
    pid=1,
    graphs={"a": GraphFacts("b", is_factory=True)},
    libraries={"langgraph": "1"},
    executor_id="x",
    slots=3,
)
SERVER_HELLO = ServerHello(
    protocol=1,
    file="",
    graphs={"a": {"path": "x:y", "description": None}},
    dependencies=["."],
    env={},
    loops=1,
    serde={"a": 1},
    store_ttl={"default_ttl": 5},
)
NOTHING_OPEN: dict[str, Any] = {"interrupts": {}, "has_next": False}
CHANGED = requests.ChangedState(checkpoint={"a": 1}, values=b"{}", long_values={"a": "1"}, **NOTHING_OPEN)
REQUEST = messages.HttpRequest(
    call=1, method="GET", path="/ok", raw_path=b"/ok", query=b"", headers=[(b"a", b"b")], body=b"", exchange=4
)
MESSAGES = [
    RUN,
    CHECKPOINT_PUT,
    HELLO,
    SERVER_HELLO,
    CHANGED,
    REQUEST,
    GraphCall(request=RUN, call=9, timeout_s=1.5),
    StateRead(graph_id="a", config={}, checkpoint={"kind": b"x"}, select=[]),
    HistoryRead(graph_id="a", config={"b": 1}, limit=10, filter={}, select=["x"]),
    requests.StateChange(graph_id="a", config={}, values=None),
    requests.StateCreation(graph_id="a", config={}, supersteps=[[{}]]),
    requests.DescriptionRequest(graph_id="a", config={}, xray=True),
    messages.CheckpointCall(call=1, scope=2, operation="read", arguments=["t", "", None]),
    messages.StoreBatch(call=1, ops=[("get", b"{}"), ("put", b'{"a":1}')]),
    messages.Retirement(reason="old"),
    messages.Leases(leases=[(1, 2.5), (3, 4)]),
    messages.GoAway(reason="over", is_planned=True),
    messages.SentUser(fields=b"x", handle=2**62),
    messages.Authenticated(identity="a", display_name="b", permissions=["c"], user=None),
    messages.Authorization(user=None, permissions=[], resource="threads", action="read", value=b""),
    messages.EncryptionCall(operation="context", about=["thread", "values"], metadata=b""),
    Pong(blocked_s=1, memory_bytes=7, clock_s=1.5),
    Outcome(values=b"{}", interrupts={"t": [{"id": "1"}]}, has_next=True, error=None),
    Outcome(values=None, row_values=b"{}", error={"error": "E", "message": "m"}, **NOTHING_OPEN),
    requests.Drawing([{"id": 1}], []),
    Schemas({"type": "object"}, None, {}, None, None),
    GraphFacts("b", is_factory=True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_are_read_as_they_were_sent(message):
    received = messages.read(type(message), on_a_link(message))
    assert on_a_link(received) == on_a_link(message)


def test_every_message_is_among_those_that_are_read():
    described = {
        kind
        for module in (messages, requests)
        for kind in vars(module).values()
        if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
    }
    assert described == set(map(type, MESSAGES))


def test_rows_of_checkpoints_have_the_types_of_their_columns():
    sent = on_a_link(CHECKPOINT_PUT)
    for name, row_type in ROWS.items():
        [row] = sent[name]
        assert messages.expect(row_type, row) == row

        # Every column has a type, and none may be missing.
        for number in range(len(row)):
            with pytest.raises(CallFailed):
                messages.expect(row_type, [*row[:number], {}, *row[number + 1 :]])

        with pytest.raises(CallFailed):
            messages.expect(row_type, row[1:])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(), parts, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(MESSAGES), st.data())
def test_messages_with_anything_in_a_field_are_refused_or_have_its_type(message, data):
    """As the reader's annotations promise it to everything behind."""
    body = on_a_link(message)
    name = data.draw(st.sampled_from(sorted(body)))
    body[name] = value = data.draw(ANYTHING)

    annotation = get_type_hints(type(message))[name]
    try:
        received = messages.read(type(message), body)
    except CallFailed as exc:
        assert exc.code == "malformed"
        assert name in exc.message
    else:
        assert messages.expect(annotation, getattr(received, name)) == value


@pytest.mark.parametrize(
    ("annotation", "values", "others"),
    [
        (str, ["", "ü"], [b"", None, 1]),
        (int, [0, -(2**63), 2**64 - 1], [True, 1.0, 2**64, "1"]),
        (float, [0, 1.5], [None, "1", True]),
        (bool, [True, False], [0, None]),
        (int | bool, [1, True], [None, 1.5]),
        (str | None, ["", None], [b"", []]),
        (bytes | None, [b"", None], ["", []]),
        (Literal["sync", "async"], ["sync"], [1, None]),
        (Literal["*"] | list[str] | None, ["*", ["a"], [], None], [[1], {}, b"*"]),
        (dict[str, str], [{}, {"a": "b"}], [{"a": 1}, [], None]),
        (dict[str, list[dict[str, Any]]] | None, [{}, {"a": [{"b": 1}]}, None], [{"a": {}}, {"a": [1]}]),
        (list[tuple[Any, ...]], [[], [[1, "a"], []]], [[1], ["a"], {}]),
        (list[tuple[str, bytes]], [[], [["a", b"b"]]], [[["a", "b"]], [["a"]], [["a", b"b", b"c"]], ["ab"]]),
        (list[tuple[int, Any]], [[[1, {}]]], [[[1]], [["1", {}]], [{}]]),
        (GraphFacts, [{}], [[], None]),
        (Any, [None, [1], {}], []),
    ],
)
def test_values_have_the_types_of_annotations(annotation, values, others):
    for value in values:
        assert messages.expect(annotation, value) == value

    for other in others:
        with pytest.raises(CallFailed) as failed:
            messages.expect(annotation, other)
        assert failed.value.code == "malformed"


def test_an_annotation_without_a_check_is_a_fault_of_this_code():
    with pytest.raises(TypeError, match="there is no check"):
        build_type_check(set[str])


@pytest.mark.parametrize(
    ("version", "upgraded"), [(PROTOCOL + 1, "the server"), (PROTOCOL - 1, "the executor"), (None, "the executor")]
)
def test_peer_of_another_protocol_is_refused_with_what_to_upgrade(version, upgraded):
    with pytest.raises(ExecutorFailed, match=f"version {version} .*: upgrade {upgraded}$"):
        read_hello({**on_a_link(HELLO), "protocol": version})


# Frames


class Pipe:
    """One direction of a stream: its messages, as gRPC carries them."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self.read = self._queue.get

    async def write(self, piece: bytes) -> None:
        self.pieces.append(piece)
        await self._queue.put(piece)

    async def end(self) -> None:
        await self._queue.put(EOF)


@contextlib.asynccontextmanager
async def connected_sessions(handlers: dict[str, Any]) -> AsyncIterator[tuple[PeerSession, PeerSession, Pipe]]:
    """Yield an orchestrator's session, that of an executor with these handlers, and what the executor sends."""
    down = Pipe()
    up = Pipe()
    orchestrator = PeerSession({}, is_executor=False, on_hello=lambda _body: None)
    executor = PeerSession(handlers, is_executor=True, on_hello=lambda _body: None, pong=Pong)
    running = asyncio.gather(
        orchestrator.run(up.read, down.write, down.end),
        executor.run(down.read, up.write, up.end),
    )
    try:
        yield orchestrator, executor, up
    finally:
        orchestrator.close("the test is over")
        await running


async def test_calls_items_results_and_errors_arrive_as_on_one_machine():
    bodies = [(message, on_a_link(message)) for message in MESSAGES] + [(None, None), (b"", b""), (2**70, 2**70)]
    received: list[Any] = []

    def echo(body: Any, call: Any) -> Any:
        call.send(body)
        return body

    def fail(_body: Any, _call: Any) -> Any:
        raise CallFailed("invalid", "no", {"problems": [{"loc": ["a"]}]})

    async with connected_sessions({"echo": echo, "fail": fail}) as (orchestrator, _, _):
        for body, expected in bodies:
            assert await orchestrator.call("echo", body, on_item=received.append) == expected

        assert received == [expected for _, expected in bodies]
        with pytest.raises(CallFailed, match="no") as failed:
            await orchestrator.call("fail")

        assert failed.value.fields == {"problems": [{"loc": ["a"]}]}
        assert await orchestrator.ping() == on_a_link(Pong())


async def test_a_large_frame_is_sent_in_pieces_that_grpc_takes():
    large = b"x" * (3 * PIECE_BYTES + 5)
    async with connected_sessions({"make": lambda _body, _call: large}) as (orchestrator, _, sent):
        assert await orchestrator.call("make") == large

    assert max(map(len, sent.pieces)) == PIECE_BYTES
    assert len(sent.pieces) >= 4


async def test_frames_that_are_queued_together_are_one_message():
    def count(upto: int, call: Any) -> None:
        for number in range(upto):
            call.send(number)

    received: list[int] = []
    async with connected_sessions({"count": count}) as (orchestrator, _, sent):
        await orchestrator.call("count", 100, on_item=received.append)
        assert received == [*range(100)]
        assert len(sent.pieces) == 1


async def test_frame_above_the_limit_fails_its_call_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "LIMITS", LinkLimits(frame_bytes=1000))

    def make(size: int, _call: Any) -> bytes:
        return b"x" * size

    async with connected_sessions({"make": make}) as (orchestrator, _, _):
        with pytest.raises(CallFailed) as failed:
            await orchestrator.call("make", 1001)

        assert failed.value.code == links.TOO_LARGE
        assert len(await orchestrator.call("make", 900)) == 900


async def test_peer_that_does_not_read_holds_the_bridge_up_until_it_reads_or_is_lost():
    told: list[bool] = []
    for ends in (False, True):
        session = PeerSession({}, is_executor=True, on_hello=lambda _body: None, on_congestion=told.append)
        may_read = asyncio.Event()

        async def write(_piece: bytes, may_read: asyncio.Event = may_read) -> None:
            await may_read.wait()

        running = asyncio.create_task(session.run(asyncio.Event().wait, write))
        session.hello(b"x" * (links.HIGH_WATER_BYTES + 1))
        assert told == [True]
        assert session.is_congested

        if ends:
            session.abort("lost")
        else:
            may_read.set()
            await session.drain()
            assert told == [True, False]
            session.abort("the test is over")

        await running
        assert told == [True, False]
        told.clear()


@pytest.mark.parametrize("is_executor", [True, False])
async def test_only_an_orchestrator_stops_reading_while_much_is_unanswered(
    monkeypatch: pytest.MonkeyPatch, *, is_executor: bool
):
    """An executor reads on: behind large inputs of other runs, a run could not be cancelled, nor a ping answered."""
    monkeypatch.setattr(sessions, "READ_AHEAD_BYTES", 100)
    begun: list[int] = []
    may_end = asyncio.Event()

    async def serve(body: Any, _call: Any) -> None:
        begun.append(body["number"])
        await may_end.wait()

    pipe = Pipe()
    session = PeerSession({"serve": serve}, is_executor=is_executor, on_hello=lambda _body: None)
    running = asyncio.create_task(session.run(pipe.read, Pipe().write))
    for number in (1, 2, 3):
        await pipe.write(encoded_frame(links.CALL, number, ["serve", {"number": number, "large": "x" * 200}]))

    async def reads_no_more() -> bool:
        return session.is_reading_paused or begun == [1, 2, 3]

    async def have_all_begun() -> bool:
        return begun == [1, 2, 3]

    await eventually(reads_no_more)
    assert session.is_reading_paused != is_executor

    may_end.set()
    await eventually(have_all_begun)
    session.abort("the test is over")
    await running


def encoded_frame(*parts: Any) -> bytes:
    payload = encode(parts)
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


@pytest.mark.parametrize(
    "piece",
    [
        (MAX_FRAME_BYTES + 1).to_bytes(HEADER_BYTES, "big"),
        b"\x00\x00\x00\x01\xc1",
        encoded_frame(GO_AWAY + 1, 0, None),
        encoded_frame(-1, 0, None),
        encoded_frame(GO_AWAY, 0, None),
        encoded_frame(GO_AWAY, 0, {"reason": 1, "is_planned": True}),
        encoded_frame(GO_AWAY, 0, {"reason": "over"}),
        encoded_frame(links.CALL, 1, ["read_state"]),
        encoded_frame(links.RESULT, 1, None),
        encoded_frame(links.PONG, 0, {}),
        encoded_frame(links.ERROR, 1, {"code": 1}),
    ],
)
async def test_peer_that_breaks_the_protocol_is_disconnected(piece):
    pipe = Pipe()
    session = PeerSession({}, is_executor=False, on_hello=lambda _body: None)
    await pipe.write(piece)
    await asyncio.wait_for(session.run(pipe.read, Pipe().write), 60)
    assert session.is_closed
    assert "broke the protocol" in await session.wait_closed()


FRAMES = st.tuples(st.integers(-1, GO_AWAY + 1), st.integers(0, 3), ANYTHING).map(lambda parts: encoded_frame(*parts))


@given(st.lists(st.binary(max_size=40) | FRAMES))
def test_no_bytes_of_a_peer_raise_anything(pieces):
    """Neither any bytes, nor frames of any values."""

    async def receive() -> None:
        session = PeerSession({}, is_executor=False, on_hello=lambda _body: None)
        for piece in pieces:
            session.data_received(piece)

    asyncio.run(receive())


async def test_nothing_is_kept_of_what_arrives_after_the_end():
    pipe = Pipe()
    session = PeerSession({}, is_executor=False, on_hello=lambda _body: None)
    session.close("over")
    await pipe.write(encoded_frame(links.CALL, 1, ["any", "x" * 1000]))
    await pipe.end()
    await session.run(pipe.read, Pipe().write)
    assert not session._received


@pytest.mark.parametrize("items", [[["values", "text"]], [["values"]], "text", [[1, b"{}"]], {"values": b"{}"}])
async def test_items_of_a_run_that_are_no_events_fail_it(items):
    delivered: list[Any] = []
    bridge: Any = SimpleNamespace(deliver=delivered.append)
    with pytest.raises(CallFailed):
        _EventReceiver(bridge, 0, lambda _size: None).push(items)

    assert not delivered


async def test_executor_with_a_malformed_pong_is_killed():
    link = Link({}, pong=lambda: None)
    executor = build_executor(link)
    peer = Peer(link)
    beating = asyncio.create_task(executor._beat())
    assert await peer.next_frame() == (links.PING, 0)
    peer.send(links.PONG, 0, {"clock_s": "late"})
    await asyncio.wait_for(beating, 60)
    assert executor._killed_because == "broke the protocol: clock_s of Pong has another type"


def test_servers_that_do_not_need_it_import_no_grpc():
    code = "import sys; import portside.cli.serve, portside.agent.server; print([*sys.modules])"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "'portside.agent.executors.pool'" in loaded

    for name in ("grpc", "portside.agent.executors.core_api"):
        assert f"'{name}'" not in loaded


# Who may connect


class Ports:
    """Notes how a gRPC server is told to listen."""

    def __init__(self) -> None:
        self.secured: list[bool] = []

    def add_insecure_port(self, _address: str) -> int:
        self.secured.append(False)
        return 1

    def add_secure_port(self, _address: str, _credentials: Any) -> int:
        self.secured.append(True)
        return 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "orchestrator"])
def test_network_is_refused_without_key_or_certificates(host):
    with pytest.raises(UserMistake, match="CORE_API_KEY"):
        PeerCredentials().listen(Ports(), host, 1)

    with pytest.raises(UserMistake, match="CORE_API_KEY"):
        PeerCredentials(certificate=b"c", private_key=b"k").listen(Ports(), host, 1)

    with pytest.raises(UserMistake, match="CORE_API_KEY"):
        PeerCredentials(ca_certificates=b"a").connect(f"[{host}]:1" if ":" in host else f"{host}:1", ())

    ports = Ports()
    PeerCredentials(keys=(KEY.encode(),)).listen(ports, host, 1)
    assert ports.secured == [False]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_neither(host):
    ports = Ports()
    PeerCredentials().listen(ports, host, 1)
    assert ports.secured == [False]


def test_certificates_are_never_ignored():
    with pytest.raises(UserMistake, match="CORE_API_CERTIFICATE"):
        PeerCredentials(keys=(b"k",), ca_certificates=b"a").listen(Ports(), "0.0.0.0", 1)

    with pytest.raises(UserMistake, match="CORE_API_CA"):
        PeerCredentials(keys=(b"k",), certificate=b"c", private_key=b"k").connect("orchestrator:1", ())


def test_executors_must_show_a_certificate_where_an_authority_is_known(monkeypatch):
    asked: list[bool] = []
    monkeypatch.setattr(
        grpc, "ssl_server_credentials", lambda *_files, require_client_auth: asked.append(require_client_auth)
    )

    for authority in (b"a", None):
        PeerCredentials(keys=(b"k",), certificate=b"c", private_key=b"k", ca_certificates=authority).listen(
            Ports(), "0.0.0.0", 1
        )

    assert asked == [True, False]


# Who joins


class Pool:
    """Stands for the pool of an orchestrator, with these graphs."""

    def __init__(self, *graphs: str) -> None:
        sources = {graph: {"path": "x:y", "description": None} for graph in graphs}
        hello = dataclasses.replace(SERVER_HELLO, graphs=sources, env={"A_KEY": "of the orchestrator"})
        self.program = SimpleNamespace(hello=hello)
        self.executors: list[Executor] = []
        self.changes: list[Any] = []

    def make_handlers(self, _executor: Any) -> dict[str, Any]:
        return {"store.batch": lambda _body, _call: None}

    def join(self, executor: Executor, **_about: Any) -> None:
        self.executors.append(executor)

    def subscribe(self, *, on_change: Any) -> None:
        self.changes.append(on_change)

    def report_change(self) -> None:
        for change in self.changes:
            change()


def build_listener(*pools: Pool, **settings: Any) -> ExecutorListener:
    return ExecutorListener(cast("Any", pools), AgentSettings(core_api_key=KEY, **settings))


class Caller:
    """The context of a call of gRPC."""

    def __init__(self, key: str) -> None:
        self._key = key

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    def invocation_metadata(self) -> Any:
        return (("authorization", f"Bearer {self._key}"),)

    async def abort(self, code: grpc.StatusCode, reason: str) -> None:
        raise PermissionError(code, reason)


async def test_nobody_without_the_key_gets_a_session_or_an_answer():
    listener = build_listener(Pool("a"))
    for serve in (listener._serve, listener._refuse_earlier_version):
        with pytest.raises(PermissionError) as refused:
            await serve(None, Caller("wrong"))
        assert refused.value.args[0] == grpc.StatusCode.UNAUTHENTICATED

    with pytest.raises(PermissionError, match="upgrade this executor server"):
        await listener._refuse_earlier_version(None, Caller(KEY))


async def test_executors_elsewhere_get_no_variables_of_the_orchestrator():
    assert build_listener(Pool("a"))._hello.env == {}


async def test_an_executor_joins_the_pool_whose_graphs_it_all_has():
    listener = build_listener(first := Pool("a", "b"), second := Pool("c"))

    def get_pool(*graphs: str, **about: Any) -> Any:
        return listener._pool_for(dataclasses.replace(HELLO, graphs=dict.fromkeys(graphs, HELLO.graphs["a"]), **about))

    assert get_pool("a", "b", "other") is first
    assert get_pool("a", "c") is second
    for graphs, about in ((("a",), {}), (("a", "b"), {"slots": 0}), (("a", "b"), {"executor_id": ""})):
        with pytest.raises(ExecutorFailed, match="cannot be used"):
            get_pool(*graphs, **about)


async def join(listener: ExecutorListener, hello: ExecutorHello) -> tuple[dict[str, Any], asyncio.Task[None]]:
    """Let an executor join; return the handlers of its calls, and the task that serves it."""
    session = PeerSession({}, is_executor=False, on_hello=lambda _body: None)
    greeting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    greeting.set_result(on_a_link(hello))
    handlers: dict[str, Any] = {}
    task = asyncio.create_task(listener._join(session, greeting, handlers))

    async def has_joined() -> bool:
        return bool(handlers) or task.done()

    await eventually(has_joined)
    return handlers, task


async def test_an_executor_that_connects_again_replaces_itself_and_one_that_retires_takes_its_slots():
    listener = build_listener(pool := Pool("a"))
    slots: list[int] = []
    listener.share_slots(cast("Any", SimpleNamespace(set_slots=slots.append)), 2)
    _, first = await join(listener, HELLO)
    handlers, second = await join(listener, HELLO)
    other, third = await join(listener, dataclasses.replace(HELLO, executor_id="other"))

    killed, again, kept = pool.executors
    assert killed._killed_because == "connected again"
    assert not again.link.is_closed
    assert not kept.link.is_closed

    handlers[messages.RETIRE]({"reason": "it is replaced"}, None)
    assert again.is_retiring
    assert not kept.is_retiring
    assert slots == [2, 2 + 3 * HELLO.slots]

    for task in (first, second, third):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert set(other) == {messages.RETIRE, "store.batch"}


async def test_session_that_ends_without_a_hello_is_tried_again(tmp_path, monkeypatch):
    """It was aborted, and its last frames are not handled yet."""
    monkeypatch.setattr(bridge, "GREETED_WITHIN_S", 0.01)
    (tmp_path / "langgraph.json").write_text('{"graphs": {"agent": "./agent.py:graph"}}')
    settings = AgentSettings(tier="executor", core_api="127.0.0.1:1")
    session, greeting = (served := Bridge(load_config(tmp_path / "langgraph.json"), settings))._open_session(None)

    session.abort("the peer broke the protocol")
    with pytest.raises(ConnectionLost, match="no hello within"):
        await served._wait_for_hello(session, greeting)


async def test_executor_is_connected_again_after_an_unexpected_failure(tmp_path, monkeypatch):
    (tmp_path / "langgraph.json").write_text('{"graphs": {"agent": "./agent.py:graph"}}')
    served = Bridge(load_config(tmp_path / "langgraph.json"), AgentSettings(tier="executor", core_api="127.0.0.1:1"))
    link = SimpleNamespace(is_closed=False)
    executor: Any = SimpleNamespace(link=link, is_retiring=False, calls=0, end_if_idle=lambda: None)
    tried = 0

    async def serve(_executor: object, _executor_id: str) -> None:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise KeyError("a message that nobody expected")

        link.is_closed = True

    monkeypatch.setattr(served, "_serve", serve)
    served._connect(executor)
    await asyncio.wait_for(asyncio.gather(*served._connections), 60)
    assert (tried, executor.calls) == (2, 0)


def test_any_of_several_keys_is_accepted():
    both = read_credentials(AgentSettings(core_api_key=f"{KEY}, {KEY[::-1]}"))
    assert both.metadata == (("authorization", f"Bearer {KEY}"),)
    assert both.admit(both.metadata)
    assert both.admit((("authorization", f"Bearer {KEY[::-1]}"),))

    for metadata in ((), (("authorization", KEY),), (("authorization", f"Bearer {KEY}x"),), (("other", KEY),), None):
        assert not both.admit(metadata)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"core_api_key": "short"}, "at least 32"),
        ({"core_api_certificate": "/tmp/x"}, "cannot be read"),
        ({"core_api_ca": "/nothing/here"}, "CORE_API_CA: /nothing/here cannot be read"),
    ],
)
def test_settings_that_cannot_be_used_are_named(given, reason):
    with pytest.raises(UserMistake, match=reason):
        read_credentials(AgentSettings(**given))


async def test_a_session_ends_though_its_read_cannot_be_cancelled(monkeypatch: pytest.MonkeyPatch):
    """As gRPC's may, when it cancels the call because the peer was killed."""
    monkeypatch.setattr(sessions, "END_WITHIN_S", 0.0)
    may_end = asyncio.Event()
    reads = asyncio.Event()

    async def read() -> bytes:
        reads.set()
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

        raise ConnectionError

    async def write(_data: bytes) -> None:
        return

    session = PeerSession({}, is_executor=False, on_hello=lambda _body: None)
    running = asyncio.create_task(session.run(read, write))
    await reads.wait()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running

    assert session.is_closed
    await session.wait_closed()
    may_end.set()


# The end of sessions


def build_bridge(tmp_path: Path, **settings: Any) -> Bridge:
    (tmp_path / "langgraph.json").write_text('{"graphs": {"agent": "./agent.py:graph"}}')
    config = load_config(tmp_path / "langgraph.json")
    return Bridge(config, AgentSettings(tier="executor", core_api="127.0.0.1:1", **settings))


def build_executor(link: Link, clock_s: float = 0.0) -> Executor:
    hello = ExecutorHello(protocol=1, language="Python", pid=1, clock_s=clock_s)
    return Executor(link, hello, name="one", heartbeat_s=5.0)


async def test_session_ends_when_the_orchestrator_is_silent_for_too_long(tmp_path, monkeypatch):
    """Seconds in which this side reads nothing are not counted, nor those before the orchestrator was heard again."""
    served = build_bridge(tmp_path, executor_heartbeat_secs=3)
    session, _ = served._open_session(None)
    seconds = iter(["silent", "silent", "heard", "silent", "silent", "paused", "silent", "silent", "silent"])

    async def pass_a_second(_delay_s: float) -> None:
        assert not session.is_closed
        second = next(seconds)
        session.is_reading_paused = second == "paused"

        if second == "heard":
            session.heard_at += 1

    monkeypatch.setattr(bridge, "asyncio", SimpleNamespace(sleep=pass_a_second))
    await served._watch(session)
    assert next(seconds, None) is None
    assert session._reason == "the orchestrator was not heard for 3 s"
    assert session._outgoing.aborted.done()


def ping(session: PeerSession) -> dict[str, Any]:
    """Return what a session answers to a ping."""
    session._take_ping(0, None, 0)
    session._flush()
    kind, _, pong = decode(bytes(session._outgoing._queue[HEADER_BYTES:]))
    assert kind == links.PONG
    return pong


async def test_pong_tells_the_memory_and_the_clock_of_the_executor(tmp_path):
    before_s = time.monotonic()
    executor = build_executor(Link({}), clock_s=before_s + 1000)
    executor.memory_bytes = 7
    session, _ = build_bridge(tmp_path)._open_session(executor)
    pong = ping(session)
    after_s = time.monotonic()
    assert pong["memory_bytes"] == 7

    assert before_s + 999.999 <= pong["clock_s"] <= after_s + 1000.001


async def test_pong_of_an_executor_whose_clock_is_unknown_tells_no_clock(tmp_path):
    session, _ = build_bridge(tmp_path)._open_session(build_executor(Link({})))
    assert ping(session)["clock_s"] == 0


async def test_session_without_an_executor_answers_pings(tmp_path):
    session, _ = build_bridge(tmp_path)._open_session(None)
    assert ping(session) == on_a_link(Pong())


class PausablePeer(Peer):
    """A peer that notes whether its link is read."""

    is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


async def test_executor_is_not_read_while_the_orchestrator_does_not_read(tmp_path):
    """What it emits waits in the executor then, and not in this process."""
    executor = build_executor(link := Link({}))
    peer = PausablePeer(link)
    session, _ = build_bridge(tmp_path)._open_session(executor)

    session.pause_writing()
    assert not peer.is_read

    session.resume_writing()
    assert peer.is_read


async def test_executors_of_a_bridge_share_its_slots(tmp_path):
    served = build_bridge(tmp_path, n_jobs_per_worker=10, executors=4)
    assert served._build_hello(build_executor(Link({})), "one").slots == 2


async def test_a_run_is_the_executors_while_it_executes_it():
    executor = build_executor(Link({}))
    run_id = uuid4()
    call = {"request": {"config": {"configurable": {"run_id": str(run_id)}}, "attempt": 2}}
    with bridge._count_run(executor, messages.EXECUTE, call):
        assert executor.runs == {run_id: 2}

    assert executor.runs == {}
    assert executor.runs_begun == 1
    with pytest.raises(CallFailed, match="no id"), bridge._count_run(executor, messages.EXECUTE, {"request": {}}):
        pass

    with bridge._count_run(executor, "schemas", call):
        assert executor.runs == {}


async def test_a_server_without_its_orchestrator_is_not_healthy(tmp_path):
    async def is_healthy() -> bool:
        return True

    connected: Any = SimpleNamespace(is_connected=False)
    app = _build_operators_app(connected, cast("Any", SimpleNamespace(is_healthy=is_healthy)), AgentSettings())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://server") as client:
        assert (await client.get("/ok")).status_code == 500
        connected.is_connected = True
        assert (await client.get("/ok")).status_code == 200


async def lose_session(served: Bridge, executor: Executor, peer: Peer) -> PeerSession:
    """Return a session that was lost while the executor served a call of it."""
    session, _ = served._open_session(executor)
    session._take_call(1, ["schemas", {}], 10)
    assert await peer.next_frame() == (links.CALL, 1)
    session.connection_lost(None)
    assert await peer.next_frame() == (links.CANCEL, 1)

    return session


async def test_executor_that_does_not_stop_the_work_of_a_lost_session_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(bridge, "STOPPED_WITHIN_S", 0.0)
    served = build_bridge(tmp_path)
    executor = build_executor(link := Link({}))
    session = await lose_session(served, executor, Peer(link))

    await served._stop_work(executor, session)
    assert link.is_closed
    assert executor._killed_because == "did not stop the runs of a lost connection"


async def test_executor_that_stops_the_work_of_a_lost_session_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(bridge, "STOPPED_WITHIN_S", 3600.0)
    served = build_bridge(tmp_path)
    executor = build_executor(link := Link({}))
    session = await lose_session(served, executor, peer := Peer(link))
    stopping = asyncio.create_task(served._stop_work(executor, session))

    peer.send(links.ERROR, 1, {"code": "cancelled", "message": "the call was cancelled"})
    await stopping
    assert not session.unfinished
    assert not link.is_closed


async def test_executor_that_has_ended_is_not_killed_for_the_work_of_a_lost_session(tmp_path, monkeypatch):
    """The reason why it ended stays."""
    monkeypatch.setattr(bridge, "STOPPED_WITHIN_S", 0.0)
    served = build_bridge(tmp_path)
    executor = build_executor(link := Link({}))
    session = await lose_session(served, executor, Peer(link))
    link._reason = "was killed by SIGKILL"

    await served._stop_work(executor, session)
    assert executor._killed_because is None


async def end_session(*, is_planned: bool | None) -> ConnectedExecutor:
    """Return an executor whose server has ended the session so; None if the connection was lost without a word."""
    sent: asyncio.Queue[Any] = asyncio.Queue()
    session = PeerSession({}, is_executor=False, on_hello=lambda _body: None)
    executor = ConnectedExecutor(session, ExecutorHello(protocol=1, language="Python", pid=1), heartbeat_s=5.0)

    of_bridge = PeerSession({}, is_executor=True, on_hello=lambda _body: None)
    if is_planned is not None:
        of_bridge.close("its executor was stopped", is_planned=is_planned)
        await of_bridge._outgoing.write_all(sent.put)

    await sent.put(EOF)
    await session.run(sent.get, sent.put)
    return executor


@pytest.mark.parametrize("is_planned", [True, False])
async def test_end_that_the_executors_server_planned_is_on_purpose(is_planned):
    """Its runs lose no attempt then."""
    executor = await end_session(is_planned=is_planned)
    assert await executor.wait_ended() == "its executor was stopped"
    assert executor.has_ended_on_purpose == is_planned
    assert executor.is_retiring == is_planned


async def test_lost_connection_is_no_end_on_purpose():
    executor = await end_session(is_planned=None)
    assert await executor.wait_ended() == "lost its connection"
    assert not executor.has_ended_on_purpose
    assert not executor.is_retiring


class EndedExecutor(Executor):
    """An executor whose process has ended, on purpose or not."""

    is_ended_by_its_server = False

    async def wait_ended(self) -> str:
        return "its process has ended"

    @property
    def has_ended_on_purpose(self) -> bool:
        return self.is_ended_by_its_server


@contextlib.asynccontextmanager
async def open_bridge(
    tmp_path: Path, handlers: dict[str, Any], on_hello: Callable[[Any], None]
) -> AsyncIterator[tuple[Bridge, PeerSession]]:
    """Yield a bridge, and the session of its orchestrator, which has said hello."""
    to_bridge: asyncio.Queue[Any] = asyncio.Queue()
    to_orchestrator: asyncio.Queue[Any] = asyncio.Queue()

    async def end_stream() -> None:
        to_orchestrator.put_nowait(EOF)
        to_bridge.put_nowait(EOF)

    async def close_channel() -> None:
        pass

    stream = SimpleNamespace(
        read=to_bridge.get, write=to_orchestrator.put, done_writing=end_stream, cancel=lambda: None
    )
    channel = SimpleNamespace(stream_stream=lambda _method: lambda **_options: stream, close=close_channel)
    served: Any = build_bridge(tmp_path)
    served._credentials = SimpleNamespace(connect=lambda *_arguments: channel, metadata=())

    orchestrator = PeerSession(handlers, is_executor=False, on_hello=on_hello)
    orchestrator.hello(ServerHello(protocol=messages.PROTOCOL, file="", graphs={}, dependencies=[], env={}, loops=1))
    running = asyncio.create_task(orchestrator.run(to_orchestrator.get, to_bridge.put))
    yield served, orchestrator
    await running


def build_ended_executor() -> EndedExecutor:
    link = Link({})
    Peer(link)
    return EndedExecutor(link, ExecutorHello(protocol=1, language="Python", pid=1), name="one", heartbeat_s=5.0)


@pytest.mark.parametrize("is_planned", [True, False])
async def test_bridge_tells_whether_it_ended_an_executor_on_purpose(tmp_path, is_planned):
    executor = build_ended_executor()
    executor.is_ended_by_its_server = is_planned

    # The executor ends when the orchestrator has got its hello.
    async with open_bridge(tmp_path, {}, lambda _body: executor.link.abort("ended")) as (served, orchestrator):
        await asyncio.wait_for(served._serve(executor, "one"), 300)

    assert orchestrator.close_reason == "its process has ended"
    assert orchestrator.was_planned == is_planned


async def test_orchestrator_is_told_of_an_executor_that_gets_no_more_work(tmp_path):
    """It would give it runs until the last one has ended, which may take hours."""
    executor = build_ended_executor()
    executor.calls = 1
    told: list[str] = []

    def retire(body: Any, _call: Any) -> None:
        told.append(body["reason"])
        executor.link.abort("its last run has ended")

    handlers = {messages.RETIRE: retire}
    async with open_bridge(tmp_path, handlers, lambda _body: executor.retire()) as (served, _):
        await asyncio.wait_for(served._serve(executor, "one"), 300)

    assert told == ["it is replaced"]


async def test_bridge_that_stops_lets_the_runs_of_its_executors_end(tmp_path):
    served = build_bridge(tmp_path)
    happened: list[str] = []
    run_may_end = asyncio.Event()

    class StoppingPool:
        """Notes what becomes of its executor."""

        def __init__(self) -> None:
            self.executors = [SimpleNamespace(retire=lambda: happened.append("it gets no more runs"))]

        def stop_starting(self) -> None:
            happened.append("none is started")

        async def close(self) -> None:
            happened.append("it is closed")

    async def serve_run() -> None:
        await run_may_end.wait()
        happened.append("its run has ended")

    served.pools = [cast("Any", StoppingPool())]
    served._connections.spawn(serve_run())
    closing = asyncio.create_task(served.close(grace_s=600.0))

    async def gets_no_more() -> bool:
        return len(happened) >= 2

    await eventually(gets_no_more)
    run_may_end.set()
    await closing
    assert happened == ["none is started", "it gets no more runs", "its run has ended", "it is closed"]


@pytest.mark.parametrize("is_hurried", [True, False])
async def test_executor_server_that_stops_waits_for_its_runs_until_it_is_hurried(tmp_path, monkeypatch, is_hurried):
    """SIGTERM lets them end within the grace period; a second one, or SIGINT, ends them."""
    signals: list[asyncio.Event] = []
    graces: list[float] = []

    class StoppingBridge:
        """Notes how long it may take to stop."""

        is_connected = False

        def __init__(self, *_arguments: Any) -> None:
            self.changed = asyncio.Event()

        async def start(self) -> None:
            pass

        async def close(self, grace_s: float = 0.0) -> None:
            graces.append(grace_s)
            if is_hurried and grace_s:
                _, hurry = signals
                hurry.set()
                await asyncio.Event().wait()

    monkeypatch.setattr(executor_tier, "Bridge", StoppingBridge)
    monkeypatch.setattr(executor_tier, "_stop_on_signals", lambda *events: signals.extend(events))
    (tmp_path / "langgraph.json").write_text('{"graphs": {"agent": "./agent.py:graph"}}')
    settings = AgentSettings(
        tier="executor", host="127.0.0.1", port=0, executor_grpc_port=0, bg_job_shutdown_grace_period_secs=600
    )

    def stop() -> None:
        signals[0].set()

    serving = asyncio.create_task(executor_tier._serve(load_config(tmp_path / "langgraph.json"), settings, stop))

    async def has_begun() -> bool:
        return bool(signals) or serving.done()

    await eventually(has_begun)
    await asyncio.wait_for(serving, 300)

    # The last call is that of the end of the server, whatever happened before.
    assert graces == ([600, 0, 0] if is_hurried else [600, 0])


@pytest.mark.parametrize(
    ("tier", "is_asked_for", "uses"),
    [
        ("all", True, True),
        ("api", True, True),
        ("queue", True, True),
        ("executor", True, False),
        ("orchestrator", False, True),
        ("queue", False, False),
    ],
)
def test_servers_of_any_tier_may_have_executors_elsewhere(tier, is_asked_for, uses):
    assert AgentSettings(tier=tier, ff_use_core_api=is_asked_for).uses_core_api == uses


STARTS_PROCESSES = """
import asyncio, os, sys
import uvloop
from portside.agent.executors import core_api
import grpc

async def echo(pieces, context):
    async for piece in pieces:
        yield piece

async def main():
    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("service", {"Echo": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    stream = grpc.aio.insecure_channel(f"127.0.0.1:{port}").stream_stream("/service/Echo")()
    for _ in range(10):
        await stream.write(b"piece")
        child = await asyncio.create_subprocess_exec(sys.executable, "-S", "-E", "-c", "pass")
        await stream.read()
        assert await child.wait() == 0

    os._exit(0)

uvloop.run(main())
"""


def test_grpc_does_nothing_in_processes_that_a_server_starts():
    """What it does there crashed some of them, and it says so each time."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-c", STARTS_PROCESSES]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
