"""An import that is killed after a write and before its answer, and started again, ends with each item exactly once."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langgraph_sdk import get_sync_client

from portside.transfer.threads import compare_histories
from tests.api.hosted import PACKAGES, Hosted, open_hosted
from tests.api.test_import_langsmith import fill, get
from tests.databases import MigratedDatabases, with_name
from tests.preloaded import PreloadedProcess
from tests.servers import ServerProcess, agent_server

HI = {"messages": [{"role": "user", "content": "hi"}]}
_DROPPED = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "content-encoding", "accept-encoding"}
)


class Gate(ThreadingHTTPServer):
    """A proxy that holds the answer to one request: the server has acted on it, and the client does not know."""

    daemon_threads = True

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarder)
        self.target = url
        self.held: tuple[str, str] | None = None
        """The method and the beginning of the path of the request whose answer is held."""
        self.reached = threading.Event()
        self.opened = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Forwarder(BaseHTTPRequestHandler):
    server: Gate

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _DROPPED}
        answer = httpx2.request(
            self.command, self.server.target + self.path, content=body, headers=headers, timeout=600
        )

        held = self.server.held
        if held is not None and self.command == held[0] and self.path.startswith(held[1]) and answer.is_success:
            self.server.held = None
            self.server.reached.set()
            self.server.opened.wait()
            return

        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name.lower() not in _DROPPED:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = forward  # noqa: N815 - names of the base class

    def log_message(self, *_arguments: Any) -> None:
        pass


@contextmanager
def gate(url: str) -> Iterator[Gate]:
    with Gate(url) as opened:
        thread = threading.Thread(target=opened.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield opened
        finally:
            opened.opened.set()
            opened.shutdown()
            thread.join()


def start(arguments: list[str], environment: dict[str, str], folder: Path) -> PreloadedProcess:
    log = folder / f"import-{len(list(folder.iterdir()))}.log"
    command = ["import", *arguments, "--report", str(folder / "report.json")]
    return PreloadedProcess(command, {**os.environ, **environment}, log, folder=folder)


def kill_at_each(moments: list[tuple[str, str]], gated: Gate, begin: Callable[[], PreloadedProcess]) -> None:
    """Kill an import at each of these writes, then let one end."""
    for moment in moments:
        gated.reached.clear()
        gated.opened.clear()
        gated.held = moment
        process = begin()
        assert gated.reached.wait(300), moment
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        gated.opened.set()

    assert begin().wait(300) == 0


@pytest.fixture
def source(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("source")) as running:
        yield running


@pytest.fixture
def target(agent_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(agent_database, tmp_path_factory.mktemp("target")) as running:
        yield running


def test_an_import_of_agents_is_killed(source: ServerProcess, target: ServerProcess, tmp_path: Path) -> None:
    with get_sync_client(url=source.url, api_key="") as before, get_sync_client(url=target.url, api_key="") as after:
        assistant = before.assistants.create("echo", name="Support")["assistant_id"]
        for name in ("second", "third"):
            before.assistants.update(assistant, description=name)
        threads = [before.threads.create()["thread_id"] for _ in range(3)]
        for thread_id in threads:
            before.runs.wait(thread_id, "echo", input=HI)
        for n in range(3):
            before.crons.create(assistant, schedule="0 0 1 1 *", input={**HI, "n": n})
            before.store.put_item(["a"], f"key {n}", {"n": n})

        folder = tmp_path / "import"
        folder.mkdir()
        with gate(target.url) as gated:
            arguments = ["agent", "--from", source.url, "--to", gated.url]
            moments = [
                ("POST", "/assistants"),
                ("PATCH", "/assistants/"),
                ("POST", "/threads"),
                ("POST", "/runs/crons"),
                ("PUT", "/store/items"),
            ]
            kill_at_each(moments, gated, lambda: start(arguments, {}, folder))

        assert len(after.assistants.get_versions(assistant)) == 3
        assert after.threads.count() == 3
        for thread_id in threads:
            histories: Any = [client.threads.get_history(thread_id, limit=100) for client in (before, after)]
            assert compare_histories(*histories) is None
        assert {cron["cron_id"] for cron in after.crons.search()} == {cron["cron_id"] for cron in before.crons.search()}
        assert len(after.crons.search()) == 3
        assert len(after.store.search_items([], limit=100)["items"]) == 3


@pytest.fixture
async def hosted_pair(postgres: str, migrated: MigratedDatabases) -> AsyncIterator[tuple[Hosted, Hosted]]:
    names = [migrated.copy(PACKAGES) for _ in range(2)]
    async with (
        open_hosted(with_name(postgres, names[0])) as before,
        open_hosted(with_name(postgres, names[1])) as after,
    ):
        yield before, after

    for name in names:
        await migrated.drop(name)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning", "ignore::langsmith.utils.LangSmithWarning")
async def test_an_import_of_traces_and_datasets_is_killed(hosted_pair: tuple[Hosted, Hosted], tmp_path: Path) -> None:
    before, after = hosted_pair
    ids = await asyncio.to_thread(fill, before, tmp_path)
    folder = tmp_path / "import"
    folder.mkdir()

    with gate(after.url) as gated:
        arguments = ["langsmith", "--from", before.url, "--url", gated.url, "--home", str(folder)]
        keys = {"IMPORT_SOURCE_API_KEY": before.key, "PORTSIDE_API_KEY": after.key, "HOME": str(folder)}
        moments = [
            ("POST", "/datasets"),
            ("POST", "/platform/examples/multipart"),
            ("DELETE", "/examples"),
            ("POST", "/commits/"),
            ("POST", "/repos/-/greeting/tags"),
            ("POST", "/sessions"),
            ("POST", "/runs/multipart"),
            ("POST", "/feedback"),
            ("POST", "/annotation-queues"),
        ]
        await asyncio.to_thread(kill_at_each, moments, gated, lambda: start(arguments, keys, folder))

    for path in (f"/datasets/{ids['dataset']}/versions", "/commits/-/greeting"):
        sent, stored = [await get(server, path) for server in (before, after)]
        assert len(stored) == len(sent)

    versions = await get(after, f"/datasets/{ids['dataset']}/versions")
    assert versions == await get(before, f"/datasets/{ids['dataset']}/versions")
    assert [commit["commit_hash"] for commit in (await get(after, "/commits/-/greeting"))["commits"]] == [
        commit["commit_hash"] for commit in (await get(before, "/commits/-/greeting"))["commits"]
    ]

    for table in ("runs", "feedback", "attachments", "traces", "examples"):
        counts = [await server.db.pool.fetchval(f"select count(*) from {table}") for server in (before, after)]
        assert counts[0] == counts[1] > 0, table
