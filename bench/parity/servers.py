"""Starts the two servers on one project: the reference and ours."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.reference import QUIET, reference_process
from tests.servers import ServerProcess, free_port

from portside.kernel.embedded import EmbeddedPostgres

PROJECT = Path(__file__).parent / "project"


@contextlib.contextmanager
def reference_server() -> Iterator[str]:
    """The address of the reference server, running on a copy of the project."""
    with reference_process(PROJECT) as running:
        yield running.url


@contextlib.contextmanager
def our_server(database_url: str, folder: Path) -> Iterator[str]:
    """The address of an agent server of ours on an empty database."""
    port = free_port()
    arguments = ["serve", "--config", str(PROJECT / "langgraph.json"), "--port", str(port)]
    settings = {"DATABASE_URI": database_url, "N_JOBS_PER_WORKER": "10", **QUIET}
    server = ServerProcess(arguments, f"http://127.0.0.1:{port}", settings, folder / "ours.log")

    server.start()
    try:
        yield server.url
    finally:
        server.stop()


@contextlib.contextmanager
def our_server_alone() -> Iterator[str]:
    """Like `our_server`, on a Postgres of its own."""
    with tempfile.TemporaryDirectory() as folder:
        embedded = EmbeddedPostgres(Path(folder))
        try:
            with our_server(embedded.acquire(), Path(folder)) as url:
                yield url
        finally:
            embedded.release()
