"""Two servers on one database: one executes runs, the other follows them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.servers import ServerProcess, agent_server


class Pair(NamedTuple):
    """`worker` executes runs; `front` is the other, and executes none."""

    worker: ServerProcess
    front: ServerProcess


@contextlib.contextmanager
def start_pair(url: str, folder: Path, **environment: str) -> Iterator[Pair]:
    """Start two servers; their environment is the same."""
    for name in ("worker", "front"):
        (folder / name).mkdir()

    with (
        agent_server(url, folder / "worker", project="streams", **environment) as worker,
        agent_server(url, folder / "front", project="streams", PORTSIDE_TIER="api", **environment) as front,
    ):
        yield Pair(worker, front)
