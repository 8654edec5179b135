import asyncio
from collections import Counter

import pytest

from tests.api.control_server import Control, control

AT_WORK = {"CREATING", "AWAITING_BUILD", "BUILDING", "AWAITING_DEPLOY", "DEPLOYING"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
async def plane(fresh_database):
    async with control(await fresh_database()) as running:
        yield running


async def push(plane: Control, deployment_id: str, ref: str) -> str:
    patched = await plane.patch(deployment_id, source_revision_config={"repo_ref": ref})
    return patched["latest_revision_id"]


async def test_a_revision_becomes_active_when_it_is_deployed_and_not_before(plane: Control) -> None:
    made = await plane.create()
    first = made["latest_revision_id"]
    for status in ("AWAITING_BUILD", "BUILDING", "AWAITING_DEPLOY", "DEPLOYING"):
        assert (await plane.listener.report(made["id"], first, status)).status_code == 204
        assert (await plane.get(made["id"]))["active_revision_id"] is None
    assert (await plane.listener.report(made["id"], first, "DEPLOYED")).status_code == 204
    assert (await plane.get(made["id"]))["active_revision_id"] == first
    second = await push(plane, made["id"], "next")
    await plane.listener.walk(made["id"], second, "AWAITING_BUILD", "BUILDING")
    refused = await plane.listener.report(made["id"], second, "BUILD_FAILED", reason="no such ref\0")
    assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["body", "reason"])
    failed = await plane.listener.report(made["id"], second, "BUILD_FAILED", reason="no such ref")
    assert failed.status_code == 204
    seen = await plane.get(made["id"])
    assert (seen["active_revision_id"], seen["latest_revision_id"]) == (first, second)
    assert (await plane.revisions(made["id"]))[0]["status_message"] == "no such ref"


async def test_reports_may_be_repeated_but_not_leave_the_table(plane: Control) -> None:
    made = await plane.create()
    revision = made["latest_revision_id"]
    await plane.listener.walk(made["id"], revision, "AWAITING_BUILD", "AWAITING_BUILD", "BUILDING")
    answer = await plane.listener.report(made["id"], revision, "BUILDING", repo_commit_sha=COMMIT)
    assert answer.status_code == 204
    assert (await plane.revisions(made["id"]))[0]["source_revision_config"]["repo_commit_sha"] == COMMIT
    skipped = await plane.listener.report(made["id"], revision, "DEPLOYED")
    assert (skipped.status_code, skipped.json()["detail"]) == (
        409,
        "A revision that is BUILDING cannot become DEPLOYED.",
    )
    await plane.listener.walk(made["id"], revision, "AWAITING_DEPLOY", "DEPLOYING", "DEPLOYED", "DEPLOYED")
    assert (await plane.listener.report(made["id"], revision, "UNKNOWN")).status_code == 409
    for bad in ({"status": "QUEUED"}, {"status": "SKIPPED"}, {"status": "BUILDING", "repo_commit_sha": "abc"}):
        assert (await plane.listener.report(made["id"], revision, **bad)).status_code == 422


async def test_revisions_wait_for_the_one_at_work_and_the_newest_goes_on(plane: Control) -> None:
    made = await plane.create()
    first = made["latest_revision_id"]
    await plane.listener.walk(made["id"], first, "AWAITING_BUILD", "BUILDING")
    pushed = [await push(plane, made["id"], f"ref-{n}") for n in range(3)]
    assert await plane.statuses(made["id"]) == ["BUILDING", "SKIPPED", "SKIPPED", "QUEUED"]
    assert (await plane.get(made["id"]))["latest_revision_id"] == pushed[-1]
    assert (await plane.listener.report(made["id"], pushed[-1], "AWAITING_BUILD")).status_code == 409
    await plane.listener.walk(made["id"], first, "BUILD_FAILED")
    assert await plane.statuses(made["id"]) == ["BUILD_FAILED", "SKIPPED", "SKIPPED", "CREATING"]
    await plane.listener.deploy(made["id"], pushed[-1])
    assert (await plane.get(made["id"]))["active_revision_id"] == pushed[-1]


@pytest.mark.parametrize("end", ["CREATE_FAILED", "INTERRUPTED", "UNKNOWN"])
async def test_every_end_lets_the_next_one_start(plane: Control, end: str) -> None:
    made = await plane.create()
    await push(plane, made["id"], "next")
    await plane.listener.walk(made["id"], made["latest_revision_id"], end, end)
    assert await plane.statuses(made["id"]) == [end, "CREATING"]


async def test_a_delete_ends_what_is_at_work_and_what_waits(plane: Control) -> None:
    made = await plane.create()
    await plane.listener.walk(made["id"], made["latest_revision_id"], "AWAITING_BUILD", "BUILDING")
    await push(plane, made["id"], "next")
    await plane.client.delete(f"/v2/deployments/{made['id']}")
    assert await plane.statuses(made["id"]) == ["INTERRUPTED", "SKIPPED"]


async def test_revisions_are_listed_newest_first_by_page_and_status(plane: Control) -> None:
    made = await plane.create()
    ids = [made["latest_revision_id"], *[await push(plane, made["id"], f"ref-{n}") for n in range(4)]]
    assert [revision["id"] for revision in await plane.revisions(made["id"])] == ids[::-1]
    assert [revision["id"] for revision in await plane.revisions(made["id"], limit=2, offset=1)] == [ids[3], ids[2]]
    assert [r["id"] for r in await plane.revisions(made["id"], status="QUEUED,CREATING")] == [ids[4], ids[0]]
    assert len(await plane.revisions(made["id"], status="SKIPPED")) == 3
    for bad in ({"status": "LOST"}, {"limit": 101}, {"remote_reconciled": "true"}):
        assert (await plane.client.get(f"/v2/deployments/{made['id']}/revisions", params=bad)).status_code == 422


async def test_many_changes_at_once_leave_a_right_state(plane: Control) -> None:
    made = await asyncio.gather(*(plane.create(f"agent-{n}") for n in range(10)))

    async def change(deployment: dict, n: int) -> None:
        if n % 5 == 0:
            await plane.listener.report(deployment["id"], deployment["latest_revision_id"], "INTERRUPTED")
        else:
            await push(plane, deployment["id"], f"ref-{n}")

    await asyncio.gather(*(change(made[n % 10], n // 10) for n in range(100)))
    for deployment in made:
        counted = Counter(await plane.statuses(deployment["id"]))
        assert sum(counted.values()) == 9
        assert sum(counted[status] for status in AT_WORK) == 1
        assert counted["QUEUED"] <= 1
        assert counted["INTERRUPTED"] == 1
        newest = (await plane.revisions(deployment["id"], limit=1))[0]
        assert newest["status"] in {"QUEUED", "CREATING"}
        assert newest["id"] == (await plane.get(deployment["id"]))["latest_revision_id"]
    rows = await plane.db.pool.fetch(
        "select array_agg(number order by number) as numbers from revisions group by deployment_id"
    )
    assert all(list(row["numbers"]) == list(range(1, 10)) for row in rows)
