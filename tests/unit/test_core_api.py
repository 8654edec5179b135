"""The core API: its messages are those of links on one machine, are all documented, and arrive as they were sent."""

import asyncio
import contextlib
import dataclasses
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpc.aio import EOF

from portside.agent.config import load_config
from portside.agent.executors.core_api import bridge
from portside.agent.executors.core_api import session as sessions
from portside.agent.executors.core_api.bridge import Bridge, ConnectionLost
from portside.agent.executors.core_api.codec import (
    GO_AWAY,
    METHODS,
    TUPLES,
    decode_frame,
    encode_frame,
    parse_frames,
)
from portside.agent.executors.core_api.credentials import PeerCredentials, read_credentials
from portside.agent.executors.core_api.listener import ConnectedExecutor
from portside.agent.executors.core_api.session import PeerSession
from portside.agent.executors.member import Executor
from portside.agent.settings import AgentSettings
from portside.core.v1 import core_pb2 as core
from portside.executor import link as links
from portside.executor import messages, requests
from portside.executor.checkpoints import backend as rows
from portside.executor.link import Link, ProtocolBroken, decode, encode
from portside.executor.messages import CheckpointPut, ExecutorHello, GraphCall, Pong, ServerHello
from portside.executor.requests import GraphFacts, HistoryRead, Outcome, RunRequest, Schemas, StateRead
from portside.kernel.errors import UserMistake
from tests.unit.executor_peer import Peer

PROTO = Path(core.__file__).with_name("core.proto").read_text("utf-8")
DESCRIBED = core.DESCRIPTOR.message_types_by_name
KEY = "0123456789abcdef0123456789abcdef"
DATACLASSES = {
    name: kind
    for module in (messages, requests)
    for name, kind in vars(module).items()
    if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
}
# The project's handlers run beside their server, in a process of its machine.
OF_HANDLERS = {"SentUser", "Authenticated", "Authorization", "EncryptionCall"}


@pytest.mark.parametrize("name", sorted(set(DATACLASSES) - OF_HANDLERS))
def test_messages_have_the_fields_of_those_on_links(name):
    fields = {field.name for field in dataclasses.fields(DATACLASSES[name])} - {"handlers"}
    of_choice = {choice.name for choice in DESCRIBED[name].oneofs if not choice.name.startswith("_")}
    in_choice = {field.name for choice in DESCRIBED[name].oneofs if choice.name in of_choice for field in choice.fields}
    assert {field.name for field in DESCRIBED[name].fields} - in_choice | of_choice == fields


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("CheckpointRow", rows.CHECKPOINT_COLUMNS),
        ("ValueRow", rows.VALUE_COLUMNS),
        ("PieceRow", rows.PIECE_COLUMNS),
        ("WriteRow", rows.WRITE_COLUMNS),
        ("Event", requests.Emitted._fields),
    ],
)
def test_tuples_have_their_parts_in_order(name, parts):
    assert name in TUPLES
    assert tuple(field.name for field in sorted(DESCRIBED[name].fields, key=lambda each: each.number)) == tuple(parts)


def test_every_message_is_documented():
    lines = PROTO.splitlines()
    bare = [
        line
        for before, line in pairwise(lines)
        if re.match(r"(message|service) ", line) and not before.startswith("//")
    ]

    assert not bare
    assert len(re.findall(r"^message ", PROTO, re.MULTILINE)) == len(DESCRIBED)


def carried(kind: int, body: Any, method: str | None = None, **options: Any) -> Any:
    """Send a frame, and return its body at the other end."""
    frame = core.Frame.FromString(encode_frame(kind, 7, body, method, is_executor=options.get("is_executor", False)))
    arrived = decode_frame(frame)
    assert arrived[:2] == (kind, 7)
    return arrived[2]


def on_a_link(body: Any) -> Any:
    return decode(encode(body))


def without_handlers(hello: Any) -> Any:
    return {name: value for name, value in on_a_link(hello).items() if name != "handlers"}


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
PUT = CheckpointPut(
    call=1,
    scope=0,
    thread_id="t",
    checkpoint_ns="",
    run=("r", 2),
    is_awaited=True,
    checkpoints=[("t", "", "c", None, "{}", "msgpack", b"\x01", "{}", "{}")],
    values=[("t", "", "messages", "1", "msgpack", b"\x02", "{1,2,3}", None)],
    pieces=[("t", 4, 5, 6, b"\x03")],
    writes=[("t", "", "c", "task", -1, "~p", None, "messages", "msgpack", b"\x04", None, None)],
    size=10,
)
CALLS = [
    (messages.EXECUTE, GraphCall(request=RUN, call=9, timeout_s=1.5)),
    ("read_state", GraphCall(request=StateRead(graph_id="a", config={}, checkpoint={"kind": b"x"}, select=[]))),
    ("read_history", GraphCall(request=HistoryRead(graph_id="a", config={"b": 1}, limit=10, filter={}, select=["x"]))),
    (messages.UPDATE_STATE, GraphCall(request=requests.StateChange(graph_id="a", config={}, values=None), scope=3)),
    (messages.CREATE_STATE, GraphCall(request=requests.StateCreation(graph_id="a", config={}, supersteps=[[{}]]))),
    ("draw", GraphCall(request=requests.DescriptionRequest(graph_id="a", config={}, xray=True))),
    (messages.CHECKPOINTS_PUT, PUT),
    (messages.CHECKPOINTS, messages.CheckpointCall(call=1, scope=2, operation="read", arguments=["t", "", None])),
    (messages.STORE_BATCH, messages.StoreBatch(call=1, ops=[("get", b"{}"), ("put", b'{"a":1}')])),
    (
        messages.HTTP_REQUEST,
        messages.HttpRequest(
            call=1, method="GET", path="/ok", raw_path=b"/ok", query=b"", headers=[(b"a", b"b")], body=b"", exchange=4
        ),
    ),
    (messages.RETIRE, messages.Retirement(reason="old")),
    ("of another version", {"any": ["body", None]}),
    ("of another version", None),
]


NOTHING_OPEN: dict[str, Any] = {"interrupts": {}, "has_next": False}
NO_ERROR: dict[str, Any] = {**NOTHING_OPEN, "error": None}


@pytest.mark.parametrize(("method", "body"), CALLS)
def test_calls_arrive_as_on_a_link(method, body):
    expected = on_a_link((method, body))
    assert carried(links.CALL, (method, body)) == expected

    # The bridge sends what it received.
    assert carried(links.CALL, expected) == expected


@pytest.mark.parametrize(
    ("method", "body"),
    [
        (messages.EXECUTE, Outcome(values=b"{}", interrupts={"t": [{"id": "1"}]}, has_next=True, error=None)),
        (messages.EXECUTE, Outcome(values=None, interrupts={}, has_next=False, error={"error": "E", "message": "m"})),
        ("read_outcome", Outcome(values=b"", row_values=b"{}", long_values={"a": "1"}, **NO_ERROR)),
        ("read_state", b"{}"),
        ("read_state", None),
        ("read_history", b"[]"),
        (messages.UPDATE_STATE, None),
        (messages.UPDATE_STATE, requests.ChangedState(checkpoint={"a": 1}, values=b"{}", **NOTHING_OPEN)),
        ("draw", requests.Drawing([{"id": 1}], [])),
        ("schemas", Schemas({"type": "object"}, None, {}, None, None)),
        ("subgraphs", {"one": Schemas(None, None, None, None, None)}),
        (messages.CHECKPOINTS_PUT, None),
        (messages.CHECKPOINTS, [{"thread_id": "t", "value_datas": [b"x", None]}]),
        (messages.CHECKPOINTS, None),
        (messages.STORE_BATCH, [None, {"value": b"{}"}, [["a", "b"]]]),
        ("of another version", [1, 2]),
    ],
)
def test_results_arrive_as_on_a_link(method, body):
    expected = on_a_link(body)
    assert carried(links.RESULT, body, method) == expected
    assert carried(links.RESULT, expected, method) == expected


@pytest.mark.parametrize(
    ("method", "body"),
    [
        (messages.EXECUTE, [("values", b"{}"), ("custom", b"1")]),
        (messages.HTTP_REQUEST, (200, [(b"a", b"b")])),
        (messages.HTTP_REQUEST, b"a piece"),
        ("of another version", "anything"),
    ],
)
def test_items_arrive_as_on_a_link(method, body):
    expected = on_a_link(body)
    assert carried(links.ITEM, body, method) == expected
    assert carried(links.ITEM, expected, method) == expected


def test_words_about_the_session_arrive():
    hello = ServerHello(
        protocol=1,
        file="",
        graphs={"a": {"path": "x:y", "description": None}},
        dependencies=["."],
        env={},
        loops=1,
        serde={"a": 1},
        store_ttl={"default_ttl": 5},
    )

    assert carried(links.HELLO, hello) == without_handlers(hello)
    own = ExecutorHello(
        protocol=1,
        language="Python",
        pid=1,
        graphs={"a": GraphFacts("b", is_factory=True)},
        libraries={"langgraph": "1"},
        executor_id="x",
        slots=3,
    )

    assert carried(links.HELLO, own, is_executor=True) == without_handlers(own)
    error = {"code": "invalid", "message": "no", "fields": {"problems": [{"loc": ["a"]}]}}
    assert carried(links.ERROR, error) == error
    assert carried(links.PONG, Pong(blocked_s=1.5, memory_bytes=7)) == on_a_link(Pong(blocked_s=1.5, memory_bytes=7))
    assert carried(GO_AWAY, {"reason": "over", "is_planned": True}) == {"reason": "over", "is_planned": True}

    for kind in (links.CANCEL, links.PING):
        assert carried(kind, None) == {}


def test_every_method_has_a_message_for_each_of_its_parts():
    for method in METHODS.values():
        assert method.body in core.Call.DESCRIPTOR.fields_by_name
        assert method.item in core.Item.DESCRIPTOR.fields_by_name
        assert method.request is None or method.request in core.GraphCall.DESCRIPTOR.fields_by_name
        assert method.result is None or method.result in core.Result.DESCRIPTOR.fields_by_name


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05abc"])
def test_broken_messages_break_the_protocol(data):
    with pytest.raises(ProtocolBroken):
        parse_frames(data)


def test_frames_without_meaning_break_the_protocol():
    with pytest.raises(ProtocolBroken):
        decode_frame(core.Frame(call=1))

    malformed = core.Frame(call=1, result=core.Result(other=core.Value(msgpack=b"\xc1")))
    with pytest.raises(ProtocolBroken):
        decode_frame(malformed)


def test_bodies_of_another_shape_are_refused():
    put = {**on_a_link(PUT), "pieces": [["t", 1]]}
    for body in (("checkpoints.put", put), ("store.batch", {"call": "one"}), (messages.EXECUTE, "text")):
        with pytest.raises((TypeError, ValueError, AttributeError, KeyError)):
            encode_frame(links.CALL, 1, body, None, is_executor=True)


def test_servers_that_do_not_need_it_import_no_grpc():
    code = "import sys; import portside.cli.serve, portside.agent.server; print([*sys.modules])"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "'portside.agent.executors.pool'" in loaded

    for name in ("grpc", "portside.agent.executors.core_api", "portside.core"):
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


def bridge_of(tmp_path: Path, **settings: Any) -> Bridge:
    (tmp_path / "langgraph.json").write_text('{"graphs": {"agent": "./agent.py:graph"}}')
    config = load_config(tmp_path / "langgraph.json")
    return Bridge(config, AgentSettings(tier="executor", core_api="127.0.0.1:1", **settings))


def executor_of(link: Link, clock_s: float = 0.0) -> Executor:
    hello = ExecutorHello(protocol=1, language="Python", pid=1, clock_s=clock_s)
    return Executor(link, hello, name="one", heartbeat_s=5.0)


async def test_session_ends_when_the_orchestrator_is_silent_for_too_long(tmp_path, monkeypatch):
    """Seconds in which this side reads nothing are not counted, nor those before the orchestrator was heard again."""
    served = bridge_of(tmp_path, executor_heartbeat_secs=3)
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
    assert session._aborted.done()


def pong_of(session: PeerSession) -> dict[str, Any]:
    """Return what a session answers to a ping."""
    session._take_ping(0, None, 0)
    kind, _, pong = decode_frame(core.Frame.FromString(session._outgoing.pop()))
    assert kind == links.PONG
    return pong


async def test_pong_tells_the_memory_and_the_clock_of_the_executor(tmp_path):
    before_s = time.monotonic()
    executor = executor_of(Link({}), clock_s=before_s + 1000)
    executor.memory_bytes = 7
    session, _ = bridge_of(tmp_path)._open_session(executor)
    pong = pong_of(session)
    after_s = time.monotonic()
    assert pong["memory_bytes"] == 7

    assert before_s + 999.999 <= pong["clock_s"] <= after_s + 1000.001


async def test_pong_of_an_executor_whose_clock_is_unknown_tells_no_clock(tmp_path):
    session, _ = bridge_of(tmp_path)._open_session(executor_of(Link({})))
    assert pong_of(session)["clock_s"] == 0


async def test_session_without_an_executor_answers_pings(tmp_path):
    session, _ = bridge_of(tmp_path)._open_session(None)
    assert pong_of(session) == on_a_link(Pong())


async def lost_session(served: Bridge, executor: Executor, peer: Peer) -> PeerSession:
    """Return a session that was lost while the executor served a call of it."""
    session, _ = served._open_session(executor)
    session._take_call(1, ["schemas", {}], 10)
    assert await peer.next_frame() == (links.CALL, 1)
    session.connection_lost(None)
    assert await peer.next_frame() == (links.CANCEL, 1)

    return session


async def test_executor_that_does_not_stop_the_work_of_a_lost_session_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(bridge, "STOPPED_WITHIN_S", 0.0)
    served = bridge_of(tmp_path)
    executor = executor_of(link := Link({}))
    session = await lost_session(served, executor, Peer(link))

    await served._stop_work(executor, session)
    assert link.is_closed
    assert executor._killed_because == "did not stop the runs of a lost connection"


async def test_executor_that_stops_the_work_of_a_lost_session_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(bridge, "STOPPED_WITHIN_S", 3600.0)
    served = bridge_of(tmp_path)
    executor = executor_of(link := Link({}))
    session = await lost_session(served, executor, peer := Peer(link))
    stopping = asyncio.create_task(served._stop_work(executor, session))

    peer.send(links.ERROR, 1, {"code": "cancelled", "message": "the call was cancelled"})
    await stopping
    assert not session.unfinished
    assert not link.is_closed


async def test_executor_that_has_ended_is_not_killed_for_the_work_of_a_lost_session(tmp_path, monkeypatch):
    """The reason why it ended stays."""
    monkeypatch.setattr(bridge, "STOPPED_WITHIN_S", 0.0)
    served = bridge_of(tmp_path)
    executor = executor_of(link := Link({}))
    session = await lost_session(served, executor, Peer(link))
    link._reason = "was killed by SIGKILL"

    await served._stop_work(executor, session)
    assert executor._killed_because is None


async def connected(*, is_planned: bool | None) -> ConnectedExecutor:
    """Return an executor whose server has ended the session so; None if the connection was lost without a word."""
    sent: asyncio.Queue[Any] = asyncio.Queue()
    session = PeerSession({}, is_executor=False, on_hello=lambda _body: None)
    executor = ConnectedExecutor(session, ExecutorHello(protocol=1, language="Python", pid=1), heartbeat_s=5.0)

    of_bridge = PeerSession({}, is_executor=True, on_hello=lambda _body: None)
    if is_planned is not None:
        of_bridge.close("its executor was stopped", is_planned=is_planned)
        await of_bridge._write_all(sent.put)

    await sent.put(EOF)
    await session.run(sent.get, sent.put)
    return executor


@pytest.mark.parametrize("is_planned", [True, False])
async def test_end_that_the_executors_server_planned_is_on_purpose(is_planned):
    """Its runs lose no attempt then."""
    executor = await connected(is_planned=is_planned)
    assert await executor.wait_ended() == "its executor was stopped"
    assert executor.has_ended_on_purpose == is_planned
    assert executor.is_retiring == is_planned


async def test_lost_connection_is_no_end_on_purpose():
    executor = await connected(is_planned=None)
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


@pytest.mark.parametrize("is_planned", [True, False])
async def test_bridge_tells_whether_it_ended_an_executor_on_purpose(tmp_path, is_planned):
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
    served: Any = bridge_of(tmp_path)
    served._credentials = SimpleNamespace(connect=lambda *_arguments: channel, metadata=())

    link = Link({})
    Peer(link)
    executor = EndedExecutor(link, ExecutorHello(protocol=1, language="Python", pid=1), name="one", heartbeat_s=5.0)
    executor.is_ended_by_its_server = is_planned

    # The executor ends when the orchestrator has got its hello.
    orchestrator = PeerSession({}, is_executor=False, on_hello=lambda _body: link.abort("ended"))
    orchestrator.hello(ServerHello(protocol=messages.PROTOCOL, file="", graphs={}, dependencies=[], env={}, loops=1))
    running = asyncio.create_task(orchestrator.run(to_orchestrator.get, to_bridge.put))
    await asyncio.wait_for(served._serve(executor, "one"), 60)
    await running
    assert orchestrator.close_reason == "its process has ended"
    assert orchestrator.was_planned == is_planned
