"""Rollouts of a newer agent server: one deployment after the other, and no further than the first that fails."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.control.scope import DesiredChanges
from portside.control.server_rollouts import ServerRollouts, Servers, get_servers, resume_rollout
from portside.kernel.codec import dump_api
from portside.kernel.db import Database
from tests.api import control_server
from tests.db.workspace_rows import add_workspace

PACKAGES = control_server.PACKAGES
VERSION = "2"


async def add_deployments(db: Database, *names: str) -> list[UUID]:
    """Make deployments whose servers are older than their listener."""
    await add_workspace(db)
    await db.pool.execute("""
        insert into listeners (id, workspace_id, compute_type, compute_id, version)
            select gen_random_uuid(), id, 'process', 'x', '2' from workspaces;
    """)
    made = []
    for name in names:
        deployment_id = uuid4()
        await db.pool.execute(
            "insert into deployments (id, workspace_id, name, source, status, tracing_project_id, service_key_id,"
            " service_key_sealed, active_revision_id, assigned_listener_id)"
            " select $1, k.workspace_id, $2, 'git_hosting', 'READY', gen_random_uuid(), k.id, '', gen_random_uuid(),"
            " l.id from api_keys k, listeners l",
            deployment_id,
            name,
        )
        await report(db, deployment_id, server_version="1", is_behind=True)
        made.append(deployment_id)

    return made


async def report(db: Database, deployment_id: UUID, **metrics: Any) -> None:
    await db.pool.execute(
        "insert into deployment_metrics (deployment_id, measured_at, metrics) values ($1, now(), $2::text::jsonb)"
        " on conflict (deployment_id) do update set metrics = excluded.metrics",
        deployment_id,
        dump_api(metrics).decode(),
    )


async def read_requests(db: Database) -> dict[str, int]:
    """Return the numbers of the requests to replace servers; 0 is none."""
    return {
        row["name"]: row["roll_forward"] for row in await db.pool.fetch("select name, roll_forward from deployments")
    }


async def read_states(db: Database) -> tuple[str, dict[str, str]]:
    servers: Servers = await get_servers(db, VERSION)
    assert servers.rollout is not None
    return servers.rollout.status, {server.name: server.state for server in servers.servers}


def make_chore(db: Database, *, is_automatic: bool = True) -> ServerRollouts:
    return ServerRollouts(db, DesiredChanges(), VERSION, is_automatic=is_automatic)


async def test_deployments_have_their_turn_one_after_the_other(db: Database) -> None:
    first, second = await add_deployments(db, "a", "b")
    chore = make_chore(db)
    await chore.activate()
    await chore.activate()
    await chore.activate()
    requests = await read_requests(db)
    assert (requests["a"] > 0, requests["b"]) == (True, 0)
    assert await read_states(db) == ("running", {"a": "replacing", "b": "behind"})

    await report(db, first, server_version=VERSION, roll_forward=requests["a"])
    await chore.activate()
    await chore.activate()
    requests = await read_requests(db)
    assert (requests["a"], requests["b"] > 0) == (0, True)

    await report(db, second, server_version=VERSION, roll_forward=requests["b"])
    await chore.activate()
    await chore.activate()
    assert await read_requests(db) == {"a": 0, "b": 0}
    assert await read_states(db) == ("done", {"a": "current", "b": "current"})


async def test_a_failure_halts_until_the_deployment_is_skipped(db: Database) -> None:
    first, _second = await add_deployments(db, "a", "b")
    chore = make_chore(db)
    await chore.activate()
    await chore.activate()
    request = (await read_requests(db))["a"]

    # The report of an earlier request says nothing about this one.
    failed = {"server_version": "1", "is_behind": True, "roll_failure": "It does not start."}
    await report(db, first, **failed, roll_forward=request - 1)
    await chore.activate()
    assert await read_requests(db) == {"a": request, "b": 0}

    await report(db, first, **failed, roll_forward=request)
    await chore.activate()
    await chore.activate()
    assert await read_requests(db) == {"a": 0, "b": 0}
    assert await read_states(db) == ("halted", {"a": "failed", "b": "behind"})
    rollout = (await get_servers(db, VERSION)).rollout
    assert rollout is not None
    assert (rollout.deployment_id, rollout.reason) == (first, "It does not start.")

    await resume_rollout(db, VERSION, [first])
    await chore.activate()
    requests = await read_requests(db)
    assert (requests["a"], requests["b"] > 0) == (0, True)


async def test_a_rollout_waits_for_the_reports_of_all_that_serve(db: Database) -> None:
    """A report from before the listener's last start, or of the listener of the version before, says nothing."""
    (deployment_id,) = await add_deployments(db, "a")
    chore = make_chore(db)
    for outdated in ("updated_at = now() + interval '1 minute'", "version = '1', updated_at = now()"):
        await db.pool.execute(f"update listeners set {outdated}")
        await chore.activate()
        assert (await get_servers(db, VERSION)).rollout is None
        await db.pool.execute("update listeners set version = '2', updated_at = now() - interval '1 minute'")

    await resume_rollout(db, VERSION, [])
    await report(db, deployment_id, server_version=VERSION)
    await db.pool.execute("update listeners set updated_at = now() + interval '1 minute'")
    await chore.activate()
    assert await read_states(db) == ("running", {"a": "unknown"})


@pytest.mark.parametrize("change", ["status = 'AWAITING_DELETE'", "active_revision_id = null"])
async def test_deployments_that_do_not_serve_have_no_turn(db: Database, change: str) -> None:
    await add_deployments(db, "a")
    await db.pool.execute(f"update deployments set {change}")
    await make_chore(db).activate()
    assert (await get_servers(db, VERSION)).rollout is None


async def test_a_rollout_begins_by_hand_where_it_is_not_automatic(db: Database) -> None:
    await add_deployments(db, "a")
    chore = make_chore(db, is_automatic=False)
    await chore.activate()
    assert (await get_servers(db, VERSION)).rollout is None

    await resume_rollout(db, VERSION, [])
    await chore.activate()
    assert (await read_requests(db))["a"] > 0


async def test_deployments_can_be_skipped_while_a_rollout_runs(db: Database) -> None:
    first = uuid4()
    second = uuid4()
    for skipped in ([first], [second], []):
        await resume_rollout(db, VERSION, skipped)

    rollout = (await get_servers(db, VERSION)).rollout
    assert rollout is not None
    assert (rollout.status, set(rollout.skipped)) == ("running", {first, second})
