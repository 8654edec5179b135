"""Count what a streamed run passes through: the functions and files of Portside from its handler to the first token.

    .venv/bin/python scripts/steps.py [--list]

A real server runs in this process on an embedded Postgres (or the one that DATABASE_URL names). A client of its own
thread streams runs of the `tokens` graph of bench/project. Counted are the distinct functions that are entered, in any
thread, after `stream_run` was called and before the event with the first token is sent. Chores of the server may fall
into that time, so the smallest of several runs counts.
"""

import argparse
import asyncio
import http.client
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = str(ROOT / "src" / "portside") + os.sep
PROJECT = ROOT / "bench" / "project" / "langgraph.json"
HANDLER = "stream_run"
FIRST_TOKEN = b"token 0 "
RUNS = 20
# Parts of a function, which a reader meets where they stand.
INLINE = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>", "<module>"})


class Recorder:
    """Notes the functions that are entered while a run is on its way to its first token."""

    def __init__(self) -> None:
        self.is_recording = False
        self.entered: dict[CodeType, None] = {}
        self.changes_of_file = 0
        self._last_file = ""
        self._outer: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _arg: object) -> None:
        if event != "call":
            return

        code = frame.f_code
        # A coroutine is entered again whenever it goes on, the handler as well.
        if code.co_name == HANDLER and not self.is_recording:
            self._start(frame)

        if not self.is_recording or not code.co_filename.startswith(SOURCE):
            return
        if code.co_name in INLINE or code in self._outer:
            return

        self.entered.setdefault(code)
        if code.co_filename != self._last_file:
            self._last_file = code.co_filename
            self.changes_of_file = self.changes_of_file + 1

    def _start(self, frame: FrameType) -> None:
        self.is_recording = True
        self.entered = {}
        self.changes_of_file = 0
        self._last_file = ""

        # What called the handler, such as the middleware, was entered before it.
        self._outer.clear()

        while frame.f_back is not None:
            frame = frame.f_back
            self._outer.add(frame.f_code)

    def watch(self, app: Any) -> Any:
        """Wrap an ASGI application: recording ends when the first token is sent."""

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            async def watched_send(message: Any) -> None:
                if FIRST_TOKEN in message.get("body", b""):
                    self.is_recording = False
                await send(message)

            await app(scope, receive, watched_send)

        return watched


def stream_runs(port: int, on_done: Callable[[], None]) -> None:
    """Stream runs one after the other, each on a thread that had one before."""
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def post(path: str, body: dict[str, Any]) -> bytes:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().read()

    body = {"assistant_id": "tokens", "input": {"messages": [{"role": "user", "content": "hi"}]}}
    thread_id = json.loads(post("/threads", {}))["thread_id"]
    for _ in range(RUNS):
        post(f"/threads/{thread_id}/runs/stream", {**body, "stream_mode": ["custom"]})
        on_done()

    connection.close()


async def measure(database_url: str) -> list[tuple[list[CodeType], int]]:
    """Return what each run passed through, and how often it went to another file."""
    recorder = Recorder()
    # Before anything is imported that starts threads.
    threading.setprofile(recorder)

    from portside.agent.app import open_app
    from portside.agent.config import load_config
    from portside.agent.settings import AgentSettings
    from portside.executor.load import load_graphs
    from portside.kernel.http.server import Server, listen
    from portside.kernel.logs import configure_logs

    configure_logs(level="WARNING")
    found: list[tuple[list[CodeType], int]] = []
    config = load_config(PROJECT)
    settings = AgentSettings(database_url=database_url)
    async with open_app(config, load_graphs(config.project), settings, database_url) as app:
        server = Server(recorder.watch(app.asgi), draining=app.draining)
        listening = listen("127.0.0.1", 0)
        await server.open([listening])
        stop = asyncio.Event()
        serving = asyncio.create_task(server.serve_until(stop, _do_nothing))

        sys.setprofile(recorder)
        await asyncio.to_thread(
            stream_runs,
            listening.getsockname()[1],
            lambda: found.append((list(recorder.entered), recorder.changes_of_file)),
        )

        sys.setprofile(None)
        stop.set()
        await serving

    # The first runs fill caches.
    return found[2:]


async def _do_nothing() -> None:
    pass


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every function, in the order of first entry")
    arguments = parser.parse_args()
    os.environ.setdefault("LANGSMITH_TRACING", "false")

    with tempfile.TemporaryDirectory() as folder:
        if url := os.environ.get("DATABASE_URL"):
            found = asyncio.run(measure(url))
        else:
            from portside.kernel.embedded import EmbeddedPostgres

            embedded = EmbeddedPostgres(Path(folder))
            try:
                found = asyncio.run(measure(embedded.acquire()))
            finally:
                embedded.release()

    entered, changes = min(found, key=lambda run: len(run[0]))
    files = Counter(code.co_filename.removeprefix(SOURCE) for code in entered)
    if arguments.list:
        for code in entered:
            print(f"{code.co_filename.removeprefix(SOURCE)}:{code.co_firstlineno} {code.co_qualname}")

    for name, functions in sorted(files.items()):
        print(f"{functions:4} {name}")

    print(f"{len(entered)} functions in {len(files)} files, {changes} changes of file (smallest of {len(found)} runs)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
