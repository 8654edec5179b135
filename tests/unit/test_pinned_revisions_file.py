"""The file of revisions that threads continue with."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from portside.agent.executors.pinned_graphs import PinnedGraphs, RevisionsFile
from portside.agent.executors.start import start_graphs
from portside.agent.problems import PROBLEMS
from portside.kernel.codec import dump_api
from portside.kernel.errors import UserMistake


def test_file_that_cannot_be_read_is_logged_once_until_that_changes(tmp_path: Path):
    path = tmp_path / "revisions.json"
    revision_id = uuid4()
    readable = dump_api([{"id": revision_id, "config": "c", "python": "p", "known_graphs": "k"}])

    file = RevisionsFile(path)
    contents = [readable, b"", b"", b"[1]", b"[1]", readable, b"", readable]
    with capture_logs() as logged:
        for content in contents:
            path.write_bytes(content)
            # The last revisions that were read stay.
            assert list(file.read()) == [revision_id]

    assert [each["event"] for each in logged] == ["the file of pinned revisions cannot be read"] * 3
    assert "revisions of threads" not in str(PROBLEMS)


def test_threads_leave_a_revision_after_its_time_limit(tmp_path: Path) -> None:
    path = tmp_path / "revisions.json"
    limits = {uuid4(): None, uuid4(): 4e9, uuid4(): 1.0}
    unlimited, within, past = limits
    entry = {"config": "c", "python": "p", "known_graphs": "k"}

    path.write_bytes(dump_api([{**entry, "id": revision_id, "until": until} for revision_id, until in limits.items()]))

    file = RevisionsFile(path)

    assert set(file.available()) == {unlimited, within}
    # Its name is still known, so that the reason why a thread left it can be said.
    assert past in file.read()


async def test_server_does_not_start_with_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Threads would silently continue with other code."""
    path = tmp_path / "revisions.json"
    path.write_bytes(b'[{"id": 7}]')
    settings: Any = SimpleNamespace(pinned_revisions=str(path), revision_id=str(uuid4()))
    nothing: Any = None

    with pytest.raises(UserMistake, match=f"PINNED_REVISIONS: {path} cannot be read"):
        await start_graphs(nothing, settings, nothing, nothing)


async def test_executors_of_a_removed_revision_end_once_they_have_no_work(tmp_path: Path) -> None:
    executor = SimpleNamespace(calls=1)
    ended: list[str] = []

    async def close() -> None:
        ended.append("earlier")

    own: Any = SimpleNamespace(facts={}, libraries={}, writer=None, pools=[], descriptions=None)
    earlier: Any = SimpleNamespace(pools=[SimpleNamespace(executors=[executor])], close=close)
    settings: Any = SimpleNamespace(pinned_revisions=str(tmp_path / "revisions.json"), revision_id=str(uuid4()))
    nothing: Any = None
    graphs = PinnedGraphs(own, nothing, settings, nothing, nothing)
    graphs._earlier[uuid4()] = earlier

    await graphs.close_removed()
    assert ended == []

    executor.calls = 0
    await graphs.close_removed()
    await graphs.close_removed()
    assert ended == ["earlier"]
