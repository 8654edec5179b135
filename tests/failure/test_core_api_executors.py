"""Executors on other machines: killed, paused, cut off and refused; each run ends once, and all connect again."""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from langgraph_sdk import get_client

from portside.agent.config import load_config
from portside.agent.executors.core_api.bridge import Bridge, ConnectionLost
from portside.agent.executors.core_api.credentials import PeerCredentials
from portside.agent.executors.core_api.grpc_server import GrpcServer
from portside.agent.executors.core_api.session import EARLIER_METHOD, LINK, READ_AHEAD_BYTES, SERVICE, PeerSession
from portside.agent.settings import AgentSettings
from portside.executor import messages
from portside.executor.messages import ExecutorHello
from portside.executor.requests import GraphFacts
from portside.kernel.version import full_version
from tests.api.streaming import open_stream
from tests.conftest import eventually
from tests.failure.test_executors import attempts, begin, wait_for_end
from tests.failure.wires import Wire
from tests.preloaded import run_command
from tests.receiver import Receiver, serve
from tests.servers import (
    PROJECTS,
    ServerProcess,
    Tiers,
    agent_server,
    executor_server,
    free_port,
    in_thread,
    peak_mb,
    start_orchestrated,
)

CRASHES = str(PROJECTS / "crashes" / "langgraph.json")
SETTINGS = {"EXECUTOR_HEARTBEAT_SECS": "10", "EXECUTORS": "1"}
# For tests in which nothing is silent: a busy machine must not seem to be.
PATIENT = {"EXECUTOR_HEARTBEAT_SECS": "120"}


class Cut(NamedTuple):
    """An orchestrator with an executor server behind a wire, and one beside it that is not started yet."""

    tiers: Tiers
    wire: Wire
    other: ServerProcess


@pytest.fixture
async def cut(
    request: pytest.FixtureRequest, agent_databases: Callable[[], Awaitable[str]], tmp_path: Path
) -> AsyncIterator[Cut]:
    core_port = free_port()
    wired = free_port()
    wire = Wire(partial(asyncio.open_connection, "127.0.0.1", core_port))

    settings = {
        **SETTINGS,
        "CORE_API_KEY": "k" * 40,
        "CORE_API_PORT": str(core_port),
        "LANGSMITH_TRACING": "false",
        **getattr(request, "param", {}),
    }

    near = executor_server(CRASHES, f"127.0.0.1:{core_port}", tmp_path / "other.log", **settings)
    behind = executor_server(CRASHES, f"127.0.0.1:{wired}", tmp_path / "behind.log", **settings)
    orchestration = start_orchestrated(await agent_databases(), tmp_path, project="crashes", count=0, **settings)

    # The wire carries what they say when they stop.
    async with wire.listening_on(wired), in_thread(orchestration) as tiers:
        await asyncio.to_thread(behind.start)
        tiers.executors.append(behind)
        try:
            yield Cut(tiers, wire, near)
        finally:
            if near.process is not None:
                await asyncio.to_thread(near.stop)


def open_client(server: ServerProcess) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, timeout=300)


async def begun(ledger: Path, count: int) -> list[int]:
    """Wait until this many attempts have begun; return their processes."""

    async def have_begun() -> list[int] | None:
        pids: list[int] = []
        with contextlib.suppress(FileNotFoundError):
            pids = [pid for pid, _ in attempts(ledger)]

        return pids if len(pids) >= count else None

    return await eventually(have_begun)


async def is_ok(server: ServerProcess) -> bool:
    async with httpx2.AsyncClient() as client:
        with contextlib.suppress(httpx2.HTTPError):
            return bool((await client.get(f"{server.url}/ok", timeout=5)).status_code == 200)

    return False


async def goes_on_elsewhere(cut: Cut, tmp_path: Path, harm: Callable[[], Any]) -> tuple[int, int]:
    """Harm what executes a run; wait until another server has ended it. Return the processes of both attempts."""
    async with open_client(cut.tiers.orchestrator) as client:
        run = await begin(client, "wait", tmp_path / "ledger")
        [first] = await begun(tmp_path / "ledger", 1)
        await asyncio.to_thread(cut.other.start)
        harm()

        first, second = await begun(tmp_path / "ledger", 2)
        (tmp_path / "ledger.go").touch()
        over = await wait_for_end(client, *run)
        assert over["status"] == "success", over
        state = (await client.get(f"/threads/{run[0]}/state")).json()
        assert state["values"]["pids"] == [first, second]

    return first, second


@pytest.mark.parametrize("cut", [PATIENT], indirect=True, ids=["patient"])
async def test_run_of_a_killed_server_goes_on_elsewhere(cut, tmp_path):
    [behind] = cut.tiers.executors
    first, second = await goes_on_elsewhere(cut, tmp_path, lambda: behind.send(signal.SIGKILL))
    assert first != second

    async def is_gone() -> bool:
        return not os.path.exists(f"/proc/{first}")  # noqa: PTH110, ASYNC240 - no disk

    await eventually(is_gone)


async def test_paused_server_is_found_by_its_heartbeat_and_connects_again(cut, tmp_path):
    [behind] = cut.tiers.executors
    first, second = await goes_on_elsewhere(cut, tmp_path, lambda: behind.send(signal.SIGSTOP))
    assert first != second
    behind.send(signal.SIGCONT)
    await eventually(lambda: is_ok(behind))
    await asyncio.to_thread(cut.other.stop)
    await executes_again(cut, tmp_path)


@pytest.mark.parametrize("how", ["cut", "lose", "break_off"])
async def test_run_of_a_server_that_is_cut_off_goes_on_elsewhere(cut, tmp_path, how):
    [behind] = cut.tiers.executors
    first, second = await goes_on_elsewhere(cut, tmp_path, getattr(cut.wire, how))

    if how == "break_off":
        # It may have connected again before the other server was given the run.
        return

    assert first != second
    cut.wire.mend()
    await eventually(lambda: is_ok(behind))
    await asyncio.to_thread(cut.other.stop)
    await executes_again(cut, tmp_path)


async def executes_again(cut: Cut, tmp_path: Path) -> None:
    async with open_client(cut.tiers.orchestrator) as client:
        run = await begin(client, "nothing", tmp_path / "again")
        assert (await wait_for_end(client, *run))["status"] == "success"


async def test_executors_connect_again_to_an_orchestrator_that_was_killed(cut, tmp_path):
    async with open_client(cut.tiers.orchestrator) as client:
        run = await begin(client, "wait", tmp_path / "ledger")
        await begun(tmp_path / "ledger", 1)
        cut.tiers.orchestrator.kill()
        await asyncio.to_thread(cut.tiers.orchestrator.start)
        await begun(tmp_path / "ledger", 2)
        (tmp_path / "ledger.go").touch()
        assert (await wait_for_end(client, *run))["status"] == "success"


async def test_every_run_ends_once_whatever_is_lost(cut, tmp_path):
    """Executors are cut off for longer than the heartbeat, and the orchestrator is killed, in the middle of runs."""
    receiver = Receiver()
    ledgers = [tmp_path / f"ledger{number}" for number in range(4)]
    runs: list[tuple[str, str]] = []

    async def attempts_begun() -> int:
        return sum(len(attempts(ledger)) for ledger in ledgers if ledger.exists())

    async def have_begun(count: int) -> bool:
        return await attempts_begun() >= count

    async with open_client(cut.tiers.orchestrator) as client, serve(receiver) as url:
        for ledger in ledgers:
            thread_id = (await client.post("/threads", json={})).json()["thread_id"]
            body = {"assistant_id": "crashes", "input": {"do": "wait", "ledger": str(ledger)}, "webhook": url}
            run = (await client.post(f"/threads/{thread_id}/runs", json={**body, "durability": "sync"})).json()
            runs.append((thread_id, run["run_id"]))

        await eventually(partial(have_begun, len(runs)))
        await asyncio.to_thread(cut.other.start)
        cut.wire.cut()
        await eventually(partial(have_begun, len(runs) + 1))

        before = await attempts_begun()
        cut.tiers.orchestrator.kill()
        await asyncio.to_thread(cut.tiers.orchestrator.start)
        await eventually(partial(have_begun, before + 1))
        cut.wire.mend()

        for ledger in ledgers:
            (tmp_path / f"{ledger.name}.go").touch()

        for thread_id, run_id in runs:
            assert (await wait_for_end(client, thread_id, run_id))["status"] == "success"
            values = (await client.get(f"/threads/{thread_id}/state")).json()["values"]
            assert len(values["pids"]) == 2, values

        paths = {run_id: f"/threads/{thread_id}/runs/{run_id}/webhook" for thread_id, run_id in runs}

        async def are_told() -> dict[str, int] | None:
            found = {run_id: (await client.get(path)).json() for run_id, path in paths.items()}
            is_over = all(delivery["status"] == "delivered" for delivery in found.values())
            return {run_id: len(delivery["attempts"]) for run_id, delivery in found.items()} if is_over else None

        told = await eventually(are_told)

    # On a busy machine the receiver may answer so late that it is told again.
    assert Counter(message["run_id"] for message in receiver.messages()) == told


@pytest.mark.parametrize("cut", [PATIENT], indirect=True, ids=["patient"])
async def test_server_that_is_asked_to_stop_ends_its_runs_and_gets_no_more(cut, tmp_path):
    [behind] = cut.tiers.executors
    async with open_client(cut.tiers.orchestrator) as client:
        run = await begin(client, "wait", tmp_path / "ledger")
        [first] = await begun(tmp_path / "ledger", 1)
        await asyncio.to_thread(cut.other.start)
        await eventually(partial(has_slots, client, 20))
        behind.send(signal.SIGTERM)
        await eventually(partial(has_slots, client, 10))
        await executes_again(cut, tmp_path)

        [(other, _)] = attempts(tmp_path / "again")
        assert other != first
        (tmp_path / "ledger.go").touch()
        assert (await wait_for_end(client, *run))["status"] == "success"
        assert attempts(tmp_path / "ledger") == [(first, 1)]

    assert await asyncio.to_thread(behind.wait_until_stopped) == 0


async def test_run_of_a_server_that_stops_at_once_is_not_counted_as_lost(cut, tmp_path):
    [behind] = cut.tiers.executors
    async with open_client(cut.tiers.orchestrator) as client:
        run = await begin(client, "wait", tmp_path / "ledger")
        await begun(tmp_path / "ledger", 1)
        assert await asyncio.to_thread(behind.stop) == 0
        await asyncio.to_thread(cut.other.start)
        await begun(tmp_path / "ledger", 2)
        (tmp_path / "ledger.go").touch()
        assert (await wait_for_end(client, *run))["status"] == "success"

    assert "the server stops" in cut.tiers.orchestrator.log.read_text()


async def test_orchestrator_needs_no_code_of_the_project(agent_databases, tmp_path):
    """Its folder has the configuration file alone; all of the code is where the executors are."""
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(CRASHES, bare)

    settings = {**SETTINGS, "CORE_API_KEY": "k" * 40, "CORE_API_PORT": str(free_port())}
    far = executor_server(CRASHES, f"127.0.0.1:{settings['CORE_API_PORT']}", tmp_path / "far.log", **settings)
    with start_orchestrated(
        await agent_databases(), tmp_path, config=str(bare / "langgraph.json"), count=0, **settings
    ) as tiers:
        await asyncio.to_thread(far.start)
        try:
            async with open_client(tiers.orchestrator) as client:
                thread_id, run_id = await begin(client, "nothing", tmp_path / "ledger")
                assert (await wait_for_end(client, thread_id, run_id))["status"] == "success"
                changed = await client.post(f"/threads/{thread_id}/state", json={"values": {"pids": [7]}})
                assert changed.is_success, changed.text
                assert (await client.get(f"/threads/{thread_id}/state")).json()["values"]["pids"][-1] == 7
                [assistant] = (await client.post("/assistants/search", json={})).json()
                schemas = await client.get(f"/assistants/{assistant['assistant_id']}/schemas")
                assert "pids" in schemas.json()["state_schema"]["properties"]
        finally:
            await asyncio.to_thread(far.stop)

    assert [file.name for file in bare.iterdir()] == ["langgraph.json"]


async def test_server_of_tier_queue_has_executors_for_what_another_answers(agent_databases, tmp_path):
    """`FF_USE_CORE_API` selects the core API for a server of any tier."""
    url = await agent_databases()
    folders = [tmp_path / name for name in ("api", "queue")]
    for folder in folders:
        folder.mkdir()

    with (
        agent_server(url, folders[0], project="crashes", PORTSIDE_TIER="api") as api,
        start_orchestrated(url, folders[1], project="crashes", PORTSIDE_TIER="queue", **SETTINGS) as tiers,
    ):
        async with open_client(api) as client:
            run = await begin(client, "nothing", tmp_path / "ledger")
            assert (await wait_for_end(client, *run))["status"] == "success"

        found = httpx2.get(f"{tiers.orchestrator.url}/ok").json()
        assert found == {"ok": True, "services": {"postgres": True, "worker": True, "grpc": True}}
        assert httpx2.get(f"{tiers.orchestrator.url}/threads").status_code == 404


async def test_executors_beside_a_server_and_elsewhere_share_its_runs(agent_databases, tmp_path):
    """`--executors` with `FF_USE_CORE_API`: both execute runs, and what one loses goes on in the other."""
    settings = {**SETTINGS, "CORE_API_KEY": "k" * 40, "CORE_API_PORT": str(free_port()), "N_JOBS_PER_WORKER": "1"}
    core_api = f"127.0.0.1:{settings['CORE_API_PORT']}"
    mixed = {**settings, "FF_USE_CORE_API": "true"}
    with agent_server(await agent_databases(), tmp_path, project="crashes", **mixed) as server:
        far = executor_server(CRASHES, core_api, tmp_path / "far.log", **settings)
        await asyncio.to_thread(far.start)
        try:
            async with open_client(server) as client:
                await eventually(partial(has_slots, client, 2))
                ledgers = [tmp_path / "one", tmp_path / "other"]
                runs = [await begin(client, "wait", ledger) for ledger in ledgers]
                pids = [(await begun(ledger, 1))[0] for ledger in ledgers]
                servers = [find_parent(pid) for pid in pids]
                assert set(servers) == {server.process.pid, far.process.pid}
                lost = ledgers[servers.index(far.process.pid)]

                far.send(signal.SIGKILL)
                await eventually(partial(has_slots, client, 1))

                for ledger in ledgers:
                    (tmp_path / f"{ledger.name}.go").touch()

                for run in runs:
                    assert (await wait_for_end(client, *run))["status"] == "success"

                # The run had no process of its own until the other one had ended.
                assert [pid for pid, _ in attempts(lost)][1:] == [pids[1 - ledgers.index(lost)]]
        finally:
            await asyncio.to_thread(far.stop)


async def has_slots(client: httpx2.AsyncClient, count: int) -> bool:
    found = (await client.get("/metrics", params={"format": "json"})).json()
    return bool(found["workers"]["max"] == count)


def find_parent(pid: int) -> int:
    """Return the server whose executor this process is."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_memory_of_executors_is_bounded_while_nobody_reads(cut, tmp_path):
    """A graph emits 2 GB faster than anybody reads, and then into a wire that carries nothing."""
    [behind] = cut.tiers.executors
    async with open_client(cut.tiers.orchestrator) as client:
        await executes_again(cut, tmp_path)
        [(executor, _)] = attempts(tmp_path / "again")
        before = {pid: peak_mb(pid) for pid in (behind.process.pid, executor)}
        peaks = dict(before)
        thread = (await client.post("/threads", json={})).json()["thread_id"]
        body = {"assistant_id": "crashes", "input": {"do": "flood", "ledger": str(tmp_path / "flood")}}
        body["stream_mode"] = "custom"

        async with open_stream(client, "POST", f"/threads/{thread}/runs/stream", json=body) as stream:
            for _ in range(100):
                await stream.next()

        cut.wire.cut()

        async def is_lost() -> bool:
            # The executor may be killed as soon as its connection is lost.
            peaks.update({pid: max(peak, peak_mb(pid)) for pid, peak in peaks.items()})
            return not await is_ok(behind)

        await eventually(is_lost)
        assert all(peaks[pid] - before[pid] < 400 for pid in peaks), (before, peaks)
        cut.wire.mend()
        await client.post(f"/threads/{thread}/runs/cancel", json={})


async def test_second_connection_of_an_executor_ends_the_first(cut):
    core_port = int(cut.tiers.orchestrator.environment["CORE_API_PORT"])
    credentials = PeerCredentials(keys=(b"k" * 40,))
    hello = ExecutorHello(
        protocol=messages.PROTOCOL,
        language="Python",
        pid=1,
        graphs={"crashes": GraphFacts()},
        executor_id="same",
        slots=1,
        host="test",
    )

    async with credentials.connect(f"127.0.0.1:{core_port}", ()) as channel:
        sessions = []
        running = []
        for _ in range(2):
            told = asyncio.Event()
            session = PeerSession(
                {}, is_executor=True, on_hello=lambda _body, told=told: told.set(), pong=messages.Pong
            )
            stream = channel.stream_stream(LINK)(metadata=credentials.metadata)

            running.append(asyncio.create_task(session.run(stream.read, stream.write, stream.done_writing)))
            await told.wait()
            session.hello(hello)
            sessions.append(session)

        async with asyncio.timeout(60):
            await sessions[0].wait_closed()

        assert not sessions[1].is_closed
        sessions[1].abort("the test is over")
        await asyncio.gather(*running, return_exceptions=True)


# Keys, certificates and health


class Identity(NamedTuple):
    certificate: Path
    private_key: Path


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        signed = self._built(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )

        self.file.write_bytes(signed.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _built(self, subject: x509.Name, key: Any) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )

    def issue(self, name: str) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        signed = self._built(subject, key.public_key()).add_extension(addresses, critical=False)
        made = Identity(self._folder / f"{name}.crt", self._folder / f"{name}.key")

        made.certificate.write_bytes(signed.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        made.private_key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

        return made


def tls(authority: Authority, identity: Identity) -> dict[str, str]:
    return {
        "CORE_API_CA": str(authority.file),
        "CORE_API_CERTIFICATE": str(identity.certificate),
        "CORE_API_PRIVATE_KEY": str(identity.private_key),
        "CORE_API_KEY": "",
    }


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def secured_tiers(
    module_database: str, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tiers]:
    """An orchestrator and two servers with two executors of one slot each, which know each other's certificates."""
    shared = {**tls(authority, authority.issue("all")), "EXECUTORS": "2", "N_JOBS_PER_WORKER": "2"}
    folder = tmp_path_factory.mktemp("secured")
    with start_orchestrated(module_database, folder, project="crashes", count=2, **shared) as tiers:
        yield tiers


async def test_executors_share_the_runs_and_have_one_for_each_slot(secured_tiers, tmp_path):
    async with open_client(secured_tiers.orchestrator) as client:
        await eventually(partial(has_slots, client, 4))
        ledgers = [tmp_path / f"ledger{number}" for number in range(6)]
        runs = [await begin(client, "wait", ledger) for ledger in ledgers]

        async def four_have_begun() -> bool:
            return sum(ledger.exists() for ledger in ledgers) == 4

        await eventually(four_have_begun)
        metrics = (await client.get("/metrics", params={"format": "json"})).json()
        assert metrics["workers"] == {"max": 4, "active": 4, "available": 0}
        pids = [pid for ledger in ledgers if ledger.exists() for pid, _ in attempts(ledger)]
        assert len(set(pids)) == 4

        for number in range(6):
            (tmp_path / f"ledger{number}.go").touch()

        for run in runs:
            assert (await wait_for_end(client, *run))["status"] == "success"


async def test_streams_states_and_cancellations_pass(secured_tiers, tmp_path):
    async with get_client(url=secured_tiers.orchestrator.url, api_key="") as client:
        thread = (await client.threads.create())["thread_id"]
        given = {"do": "nothing", "ledger": str(tmp_path / "streamed")}
        parts = [
            (part.event, part.data)
            async for part in client.runs.stream(thread, "crashes", input=given, stream_mode=["updates", "values"])
        ]

        updates = [next(iter(data)) for event, data in parts if event == "updates"]
        assert updates == ["first", "act"]
        history = await client.threads.get_history(thread)
        assert [state["next"] for state in history] == [[], ["act"], ["first"], ["__start__"]]
        await client.threads.update_state(thread, {"pids": [7]})
        assert (await client.threads.get_state(thread))["values"]["pids"][-1] == 7
        [assistant] = await client.assistants.search()
        assert (await client.assistants.get_graph(assistant["assistant_id"]))["nodes"]

        assert (await client.assistants.get_schemas(assistant["assistant_id"]))["input_schema"]
        waiting = {"do": "wait", "ledger": str(tmp_path / "waiting")}
        run = await client.runs.create(thread, "crashes", input=waiting)
        await begun(tmp_path / "waiting", 1)
        await client.runs.cancel(thread, run["run_id"], wait=True)
        assert (await client.runs.get(thread, run["run_id"]))["status"] == "interrupted"


async def check_health(port: str, authority: Authority | None = None, identity: Identity | None = None) -> int:
    """Return what `grpc.health.v1` says."""
    channel: Any

    if authority is None or identity is None:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    else:
        parts = (authority.file, identity.private_key, identity.certificate)
        own = grpc.ssl_channel_credentials(*(part.read_bytes() for part in parts))
        channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", own)

    async with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=300)).status


async def test_servers_of_both_tiers_say_how_they_are(secured_tiers, authority):
    serving = health_pb2.HealthCheckResponse.SERVING
    assert (
        await check_health(secured_tiers.orchestrator.environment["CORE_API_PORT"], authority, authority.issue("asks"))
        == serving
    )

    for executor in secured_tiers.executors:
        assert await check_health(executor.environment["EXECUTOR_GRPC_PORT"]) == serving
        found = httpx2.get(f"{executor.url}/ok").json()
        assert found == {"ok": True, "services": {"grpc": True, "orchestrator": True}}
        assert "process_" in httpx2.get(f"{executor.url}/metrics").text
        assert httpx2.get(f"{executor.url}/threads").status_code == 404

    found = httpx2.get(f"{secured_tiers.orchestrator.url}/ok").json()
    assert found == {"ok": True, "services": {"postgres": True, "grpc": True}}


EARLIER = f"/{SERVICE}/{EARLIER_METHOD}"


async def test_executor_server_of_an_earlier_version_is_told_to_upgrade(secured_tiers, authority):
    core_api = f"127.0.0.1:{secured_tiers.orchestrator.environment['CORE_API_PORT']}"
    earlier = authority.issue("earlier")
    parts = (authority.file, earlier.private_key, earlier.certificate)
    own = grpc.ssl_channel_credentials(*(part.read_bytes() for part in parts))

    async with grpc.aio.secure_channel(core_api, own) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.stream_stream(EARLIER)().read()

    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert refused.value.details() == (
        f"upgrade this executor server to Portside {full_version()}, the version of the orchestrator"
    )


async def test_executor_server_tells_to_upgrade_an_orchestrator_of_an_earlier_version():
    port = free_port()
    server = GrpcServer()
    credentials = PeerCredentials()
    earlier = grpc.method_handlers_generic_handler(SERVICE, {})
    await server.start(partial(credentials.listen, host="127.0.0.1", port=port), earlier)

    settings = AgentSettings(tier="executor", core_api=f"127.0.0.1:{port}")
    served = Bridge(load_config(Path(CRASHES)), settings)
    session, greeting = served._open_session(None)
    try:
        with pytest.raises(ConnectionLost) as refused:
            async with served._run_session(session):
                await served._wait_for_hello(session, greeting)
    finally:
        await server.close()

    assert str(refused.value) == (
        f"refused: upgrade the orchestrator to Portside {full_version()}, the version of this executor server"
    )


async def test_strangers_are_refused(secured_tiers, authority, tmp_path):
    """A certificate of another authority, none, and a key where none is known."""
    core_api = f"127.0.0.1:{secured_tiers.orchestrator.environment['CORE_API_PORT']}"
    stranger = Authority(tmp_path, "stranger")

    forged = {**tls(authority, stranger.issue("forged"))}
    without = {"CORE_API_KEY": "k" * 40}
    for number, given in enumerate((forged, without)):
        server = executor_server(CRASHES, core_api, tmp_path / f"stranger{number}.log", **given)
        await asyncio.to_thread(start_without_waiting, server)
        try:
            await eventually(partial(says, server, "not connected to the orchestrator"))
            assert not await is_ok(server)
            assert httpx2.get(f"{server.url}/ok").json()["services"]["orchestrator"] is False
        finally:
            await asyncio.to_thread(server.stop)


async def test_wrong_key_is_refused(cut, tmp_path):
    core_api = f"127.0.0.1:{cut.tiers.orchestrator.environment['CORE_API_PORT']}"
    server = executor_server(CRASHES, core_api, tmp_path / "wrong.log", CORE_API_KEY="w" * 40)
    await asyncio.to_thread(start_without_waiting, server)

    try:
        await eventually(partial(says, server, "the key is not the one"))
        assert not await is_ok(server)
    finally:
        await asyncio.to_thread(server.stop)

    wrong = PeerCredentials(keys=(b"w" * 40,))
    async with wrong.connect(core_api, ()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.stream_stream(EARLIER)(metadata=wrong.metadata).read()

    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert "k" * 40 not in server.log.read_text()
    assert "w" * 40 not in cut.tiers.orchestrator.log.read_text()


def start_without_waiting(server: ServerProcess) -> None:
    server.log.touch()
    with contextlib.suppress(AssertionError):
        server.start(0)


async def says(server: ServerProcess, text: str) -> bool:
    assert server.process is not None
    assert server.process.poll() is None, server.log.read_text()
    return text in server.log.read_text() and await answers(server)


async def answers(server: ServerProcess) -> bool:
    with contextlib.suppress(httpx2.HTTPError):
        httpx2.get(f"{server.url}/ok", timeout=5)
        return True

    return False


async def test_open_addresses_are_refused_without_key_or_certificates(module_database, tmp_path):
    environment = {**os.environ, "DATABASE_URI": module_database, "CORE_API_HOST": "0.0.0.0", "CORE_API_KEY": ""}
    for more in (
        ["--tier", "orchestrator"],
        ["--tier", "executor", "--core-api", "192.0.2.1:50054"],
        ["--tier", "executor", "--core-api", "nowhere"],
        ["--tier", "executor"],
    ):
        command = ["serve", "--config", CRASHES, "--port", str(free_port()), *more]
        done = await asyncio.to_thread(run_command, *command, environment=environment)
        assert done.returncode == 1, done.stderr
        assert "core-api" in done.stderr or "CORE_API_KEY" in done.stderr, done.stderr


@pytest.mark.parametrize("cut", [PATIENT], indirect=True, ids=["patient"])
async def test_large_inputs_of_several_runs_do_not_silence_an_executor(cut, tmp_path):
    """Together they are more than a session reads ahead of what it serves."""
    async with open_client(cut.tiers.orchestrator) as client:
        ledgers = [tmp_path / f"ledger{number}" for number in range(9)]
        runs = [await begin(client, "wait", ledger, large="x" * (READ_AHEAD_BYTES // 8)) for ledger in ledgers]
        for ledger in ledgers:
            await begun(ledger, 1)
            (tmp_path / f"{ledger.name}.go").touch()

        for run in runs:
            assert (await wait_for_end(client, *run))["status"] == "success"

        assert [len(attempts(ledger)) for ledger in ledgers] == [1] * len(ledgers)
