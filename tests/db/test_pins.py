"""Which revision's code a thread goes on with, and when it changes to that of the server."""

import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.agent.config import load_config
from portside.agent.executors.pinned_graphs import PinnedGraphs
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.executor.requests import RunRequest, StateRead
from portside.kernel.codec import dump_api
from portside.kernel.db import Database

EARLIER = uuid4()
SERVING = uuid4()


@pytest.fixture
async def thread_id(db: Database) -> UUID:
    """A thread that has nothing left to finish."""
    created = uuid4()
    await db.pool.execute("insert into threads (thread_id) values ($1)", created)
    return created


async def pin(
    db: Database, thread_id: UUID, run_id: UUID, revision_id: UUID, available: Iterable[UUID] = (EARLIER, SERVING)
) -> tuple[UUID, UUID | None]:
    """Begin a run on a server of a revision; return the revision that the run has, and the one that it would keep."""
    row = await db.fetchrow(
        sql.pin_thread, thread_id=thread_id, run_id=run_id, revision_id=revision_id, available=list(available)
    )
    assert row is not None
    return row["revision_id"], row["left_revision_id"]


async def end_run(db: Database, thread_id: UUID, status: str) -> None:
    """Leave a thread as a run does that ends so."""
    await db.pool.execute("update threads set status = $2, idle_status = $2 where thread_id = $1", thread_id, status)


async def test_another_attempt_at_a_run_keeps_its_revision(db: Database, thread_id: UUID) -> None:
    run_id = uuid4()
    assert await pin(db, thread_id, run_id, EARLIER) == (EARLIER, None)

    assert await pin(db, thread_id, run_id, SERVING) == (EARLIER, None)
    assert await pin(db, thread_id, run_id, SERVING) == (EARLIER, None), "the thread stays with it"


@pytest.mark.parametrize("status", ["idle", "error"])
async def test_next_run_begins_with_the_revision_of_its_server(db: Database, thread_id: UUID, status: str) -> None:
    await pin(db, thread_id, uuid4(), EARLIER)
    await end_run(db, thread_id, status)

    run_id = uuid4()
    assert await pin(db, thread_id, run_id, SERVING) == (SERVING, None)
    assert await pin(db, thread_id, run_id, EARLIER) == (SERVING, None), "its attempts stay with that one"


async def test_run_that_resumes_an_interrupted_thread_keeps_its_revision(db: Database, thread_id: UUID) -> None:
    await pin(db, thread_id, uuid4(), EARLIER)
    await end_run(db, thread_id, "interrupted")

    resuming = uuid4()
    assert await pin(db, thread_id, resuming, SERVING) == (EARLIER, None)

    await end_run(db, thread_id, "idle")
    assert await pin(db, thread_id, resuming, SERVING) == (EARLIER, None), "it is the last run now"
    assert await pin(db, thread_id, uuid4(), SERVING) == (SERVING, None)


@pytest.mark.parametrize("is_interrupted", [True, False])
async def test_revision_that_is_not_available_is_left_and_named(
    db: Database, thread_id: UUID, *, is_interrupted: bool
) -> None:
    begun = uuid4()
    await pin(db, thread_id, begun, EARLIER)

    if is_interrupted:
        await end_run(db, thread_id, "interrupted")

    run_id = uuid4() if is_interrupted else begun
    assert await pin(db, thread_id, run_id, SERVING, available=[SERVING]) == (SERVING, EARLIER)

    # It is named once: the thread has the other revision now, also when the earlier one is there again.
    assert await pin(db, thread_id, run_id, SERVING) == (SERVING, None)


async def test_thread_that_was_deleted_gets_no_pin(db: Database) -> None:
    assert (
        await db.fetchrow(sql.pin_thread, thread_id=uuid4(), run_id=uuid4(), revision_id=SERVING, available=[SERVING])
        is None
    )

    assert await db.pool.fetchval("select count(*) from thread_revisions") == 0


# The graphs of a server


class Pinned:
    """The graphs of a server, beside those of an earlier revision, which have the code in another folder."""

    def __init__(self, folder: Path, db: Database) -> None:
        self.folder = folder
        self.started: list[Path] = []
        self.file = folder / "revisions.json"
        self.own: Any = SimpleNamespace(facts={}, libraries={}, writer=None, pools=[], descriptions=None)
        self.earlier: Any = object()

        for name in ("earlier", "serving"):
            (folder / name).mkdir()
            (folder / name / "agent.py").touch()
            (folder / name / "langgraph.json").write_text(
                '{"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}'
            )

        async def start(config: Any, _settings: AgentSettings) -> Any:
            self.started.append(config.file)
            return self.earlier

        settings = AgentSettings(pinned_revisions=str(self.file), revision_id=str(SERVING))
        self.graphs = PinnedGraphs(self.own, load_config(folder / "serving" / "langgraph.json"), settings, db, start)
        self.write({EARLIER: "earlier", SERVING: "serving"})

    def write(self, folders: dict[UUID, str], **more: Any) -> None:
        """Write the file of the revisions that have their code in these folders."""
        kept = [
            {
                "id": id_,
                "config": str(self.folder / name / "langgraph.json"),
                "python": "p",
                "known_graphs": "k",
                **more,
            }
            for id_, name in folders.items()
        ]
        self.file.write_bytes(dump_api(kept))


@pytest.fixture
def pinned(tmp_path: Path, db: Database) -> Pinned:
    return Pinned(tmp_path, db)


def build_read(thread_id: UUID) -> StateRead:
    return StateRead(graph_id="agent", config={"configurable": {"thread_id": str(thread_id)}})


@pytest.mark.parametrize("status", ["busy", "interrupted", "idle", "error"])
async def test_state_is_read_with_the_code_of_a_thread_that_has_something_to_finish(
    db: Database, thread_id: UUID, pinned: Pinned, status: str
) -> None:
    await pin(db, thread_id, uuid4(), EARLIER)
    await db.pool.execute("update threads set status = $2 where thread_id = $1", thread_id, status)

    found = await pinned.graphs._find(build_read(thread_id))
    assert found is (pinned.earlier if status in ("busy", "interrupted") else pinned.own)


async def test_revision_with_the_same_build_needs_no_executors_of_its_own(
    db: Database, thread_id: UUID, pinned: Pinned
) -> None:
    """As after a rollback, which is a new revision of the earlier build."""
    pinned.write({EARLIER: "serving", SERVING: "serving"})
    await pin(db, thread_id, uuid4(), EARLIER)
    await end_run(db, thread_id, "interrupted")

    assert await pinned.graphs._find(build_read(thread_id)) is pinned.own
    assert pinned.started == []


@pytest.mark.parametrize("is_pinned", [True, False])
async def test_nothing_is_pinned_without_the_servers_own_revision_in_the_file(
    db: Database, thread_id: UUID, pinned: Pinned, *, is_pinned: bool
) -> None:
    if not is_pinned:
        pinned.write({EARLIER: "earlier"})

    ids = {"thread_id": str(thread_id), "run_id": str(uuid4())}
    run = RunRequest(graph_id="agent", input={}, config={"configurable": ids, "metadata": {}}, stream_modes=[])
    assert await pinned.graphs._begin(run) is pinned.own

    pins = await db.pool.fetchval("select count(*) from thread_revisions where thread_id = $1", thread_id)
    assert (pins, "revision_id" in run.config["metadata"]) == (int(is_pinned), is_pinned)


async def test_revision_past_its_time_limit_is_still_used_by_runs_under_way_alone(db: Database, pinned: Pinned) -> None:
    """Its code must not be removed before they have ended; nobody answers its interrupts with it any more."""
    for status in ("busy", "interrupted", "interrupted", "idle"):
        created = uuid4()
        await db.pool.execute("insert into threads (thread_id) values ($1)", created)
        await pin(db, created, uuid4(), EARLIER)
        await db.pool.execute("update threads set status = $2 where thread_id = $1", created, status)

    assert await pinned.graphs.count_threads() == {EARLIER: 3}

    pinned.write({EARLIER: "earlier"}, until=time.time() - 3600)
    pinned.graphs._counts = None
    assert await pinned.graphs.count_threads() == {EARLIER: 1}
