"""The life of a revision over HTTP: queue, status transitions, interrupts and redeploys."""

import pytest

from tests.api.control_server import Control

COMMIT = "0123456789abcdef0123456789abcdef01234567"


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def push(plane: Control, deployment_id: str, ref: str) -> str:
    patched = await plane.patch(deployment_id, source_revision_config={"repo_ref": ref})
    return patched["latest_revision_id"]


async def test_a_revision_becomes_active_when_it_is_deployed_and_not_before(plane: Control) -> None:
    made = await plane.create()
    first = made["latest_revision_id"]
    await plane.client.put(f"/internal/deployments/{made['id']}/status", json={"status": "READY"})
    for status in ("AWAITING_BUILD", "BUILDING", "AWAITING_DEPLOY", "DEPLOYING"):
        assert (await plane.listener.report(made["id"], first, status)).status_code == 204
        seen = await plane.get(made["id"])
        assert (seen["active_revision_id"], seen["status"]) == (None, "READY")

    assert (await plane.listener.report(made["id"], first, "DEPLOYED")).status_code == 204
    assert (await plane.get(made["id"]))["active_revision_id"] == first
    second = await push(plane, made["id"], "next")
    await plane.listener.walk(made["id"], second, "AWAITING_BUILD", "BUILDING")

    refused = await plane.listener.report(made["id"], second, "BUILD_FAILED", reason="no such ref\0")
    assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["body", "reason"])
    failed = await plane.listener.report(made["id"], second, "BUILD_FAILED", reason="no such ref")
    assert failed.status_code == 204
    deployment = await plane.get(made["id"])
    assert (deployment["active_revision_id"], deployment["latest_revision_id"]) == (first, second)
    assert (await plane.revisions(made["id"]))[0]["status_message"] == "no such ref"


async def test_only_the_active_revision_shows_why_nothing_of_the_deployment_runs(plane: Control) -> None:
    made = await plane.create()
    await plane.listener.deploy(made["id"], made["latest_revision_id"])
    active = await push(plane, made["id"], "next")
    await plane.listener.deploy(made["id"], active)
    report = {"status": "UNKNOWN", "reason": "disk full"}
    await plane.client.put(f"/internal/deployments/{made['id']}/status", json=report)

    expected = {active: "disk full", made["latest_revision_id"]: None}
    assert {each["id"]: each["status_message"] for each in await plane.revisions(made["id"])} == expected
    for revision_id, message in expected.items():
        shown = (await plane.client.get(f"/v2/deployments/{made['id']}/revisions/{revision_id}")).json()
        assert shown["status_message"] == message


async def test_a_report_that_is_repeated_late_changes_nothing(plane: Control) -> None:
    made = await plane.create()
    first = made["latest_revision_id"]
    await plane.listener.deploy(made["id"], first)
    second = await push(plane, made["id"], "next")
    await plane.listener.deploy(made["id"], second)
    await plane.listener.walk(made["id"], first, "DEPLOYED")
    assert (await plane.get(made["id"]))["active_revision_id"] == second

    third = await push(plane, made["id"], "third")
    await push(plane, made["id"], "fourth")
    assert (await plane.listener.report(made["id"], third, "CREATE_FAILED", reason="no such ref")).status_code == 204
    await push(plane, made["id"], "fifth")
    await plane.listener.walk(made["id"], third, "CREATE_FAILED")
    assert (await plane.statuses(made["id"]))[2:] == ["CREATE_FAILED", "CREATING", "QUEUED"]
    assert (await plane.revisions(made["id"], status="CREATE_FAILED"))[0]["status_message"] == "no such ref"


async def test_reports_may_repeat_but_illegal_transitions_are_refused(plane: Control) -> None:
    made = await plane.create()
    revision = made["latest_revision_id"]
    await plane.listener.walk(made["id"], revision, "AWAITING_BUILD", "AWAITING_BUILD", "BUILDING")
    response = await plane.listener.report(made["id"], revision, "BUILDING", repo_commit_sha=COMMIT)
    assert response.status_code == 204
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


async def test_reported_author_and_subject_of_the_commit_are_shown(plane: Control) -> None:
    """A listener of the version before reports none, and one of a later version reports what is not known here."""
    made = await plane.create()
    revision = made["latest_revision_id"]
    await plane.listener.walk(made["id"], revision, "AWAITING_BUILD", "BUILDING")
    texts = {"repo_commit_author": "Ada", "repo_commit_subject": "Say hello"}

    for name in texts:
        for bad in ("", "two\nlines", "x" * 201):
            refused = await plane.listener.report(made["id"], revision, "BUILDING", **{name: bad})
            assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["body", name])

    reported = await plane.listener.report(
        made["id"], revision, "AWAITING_DEPLOY", repo_commit_sha=COMMIT, **texts, unheard_of={"by": "this version"}
    )
    assert reported.status_code == 204
    await plane.listener.walk(made["id"], revision, "DEPLOYING", "DEPLOYED")

    expected = {"repo_commit_sha": COMMIT, **texts}
    for config in (
        (await plane.get(made["id"]))["source_revision_config"],
        (await plane.revisions(made["id"]))[0]["source_revision_config"],
        (await plane.client.get(f"/v2/deployments/{made['id']}/revisions/{revision}")).json()["source_revision_config"],
    ):
        assert {name: config[name] for name in expected} == expected


async def test_revisions_queue_and_only_the_newest_starts(plane: Control) -> None:
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
async def test_every_terminal_status_starts_the_waiting_revision(plane: Control, end: str) -> None:
    made = await plane.create()
    await push(plane, made["id"], "next")
    await plane.listener.walk(made["id"], made["latest_revision_id"], end, end)
    assert await plane.statuses(made["id"]) == [end, "CREATING"]


async def test_a_delete_stops_running_and_waiting_revisions(plane: Control) -> None:
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
    assert await plane.revisions(made["id"], remote_reconciled="true") == []
    await plane.listener.deploy(made["id"], ids[0])
    assert [r["id"] for r in await plane.revisions(made["id"], status="CREATING")] == [ids[4]]

    assert len(await plane.revisions(made["id"], remote_reconciled="false")) == 5

    for bad in ({"status": "LOST"}, {"limit": 101}, {"remote_reconciled": "maybe"}):
        assert (await plane.client.get(f"/v2/deployments/{made['id']}/revisions", params=bad)).status_code == 422


async def test_a_revision_is_made_on_demand(plane: Control) -> None:
    made = await plane.create(secrets=[{"name": "FOO", "value": "bar"}])
    path = f"/v2/deployments/{made['id']}/revisions"
    empty = await plane.client.post(path, json={})
    assert (empty.status_code, empty.json()["status"]) == (201, "QUEUED")
    changed = await plane.client.post(path, json={"display_name": "Mine", "source_revision_config": {"repo_ref": "b"}})
    assert changed.json()["source_revision_config"]["repo_ref"] == "b"
    deployment = await plane.get(made["id"])
    assert (deployment["latest_revision_id"], deployment["display_name"]) == (changed.json()["id"], "Mine")

    assert deployment["secrets"] == [{"name": "FOO", "value": "bar"}]
    assert await plane.statuses(made["id"]) == ["CREATING", "SKIPPED", "QUEUED"]
    refused = await plane.client.post(path, json={"source_config": {"repo_url": "https://h/other"}})
    assert refused.status_code == 400


async def test_a_tracing_key_of_another_platform_alone_is_ignored(plane: Control) -> None:
    """A key of another platform in `.env` would go to this one, which refuses it, and every trace would be lost."""
    foreign = {"name": "LANGSMITH_API_KEY", "value": "lsv2_pt_key_of_another_service"}
    names = ("LANGSMITH_ENDPOINT", "LANGSMITH_RUNS_ENDPOINTS", "LANGCHAIN_RUNS_ENDPOINTS")
    endpoints = [{"name": name, "value": "https://traces.test"} for name in names]
    known = {"name": "LANGSMITH_API_KEY", "value": (await plane.client.post("/api-key", json={})).json()["key"]}
    listener_id = await plane.listener.connect()

    async def names_of_secrets() -> list[str]:
        deployment = (await plane.listener.desired(listener_id))["deployments"][0]
        return [secret["name"] for secret in deployment["revisions"][-1]["secrets"]]

    made = await plane.create(secrets=[foreign, {"name": "FOO", "value": "bar"}])
    assert made["ignored_secrets"] == ["LANGSMITH_API_KEY"]
    assert [secret["name"] for secret in made["secrets"]] == ["LANGSMITH_API_KEY", "FOO"]
    assert await names_of_secrets() == ["FOO"]

    for secrets in (*([foreign, endpoint] for endpoint in endpoints), [known]):
        changed = await plane.patch(made["id"], secrets=secrets)
        assert changed["ignored_secrets"] == []
        assert await names_of_secrets() == [secret["name"] for secret in secrets]


async def test_a_redeploy_serves_a_build_again(plane: Control) -> None:
    made = await plane.create(secrets=[{"name": "FOO", "value": "1"}], source_config={"install_command": "npm ci"})
    first = made["latest_revision_id"]
    path = f"/v2/deployments/{made['id']}/revisions"
    early = await plane.client.post(f"{path}/{first}/redeploy")
    assert (early.status_code, "never built" in early.json()["detail"]) == (400, True)
    await plane.listener.walk(made["id"], first, "AWAITING_BUILD")
    await plane.listener.report(made["id"], first, "BUILDING", repo_commit_sha=COMMIT)

    await plane.listener.walk(made["id"], first, "AWAITING_DEPLOY", "DEPLOYING", "DEPLOYED")
    second = (
        await plane.patch(
            made["id"],
            secrets=[{"name": "FOO", "value": "2"}],
            source_config={"install_command": "yarn"},
            source_revision_config={"repo_ref": "next"},
        )
    )["latest_revision_id"]

    await plane.listener.deploy(made["id"], second)
    response = await plane.client.post(f"{path}/{first}/redeploy")
    assert response.status_code == 200
    again = response.json()
    assert again["active_revision_id"] == second
    assert again["latest_revision_id"] not in (first, second)
    assert again["secrets"] == [{"name": "FOO", "value": "1"}]

    assert again["source_revision_config"] == (await plane.revisions(made["id"]))[2]["source_revision_config"]
    wanted = (await plane.listener.desired(await plane.listener.connect()))["deployments"][0]["revisions"][-1]
    assert (wanted["built_from"], wanted["repo_commit_sha"], wanted["install_command"]) == (first, COMMIT, "npm ci")
    await plane.listener.walk(made["id"], again["latest_revision_id"], "AWAITING_DEPLOY", "DEPLOYING", "DEPLOYED")

    third = (await plane.client.post(f"{path}/{again['latest_revision_id']}/redeploy")).json()
    wanted = (await plane.listener.desired(await plane.listener.connect()))["deployments"][0]["revisions"][-1]
    assert (wanted["id"], wanted["built_from"]) == (third["latest_revision_id"], first)
    newer = await plane.patch(made["id"], secrets=[])
    assert newer["source_revision_config"]["repo_commit_sha"] is None
    await plane.client.delete(f"/v2/deployments/{made['id']}")

    late = await plane.client.post(f"{path}/{first}/redeploy")
    assert (late.status_code, "being deleted" in late.json()["detail"]) == (400, True)


async def test_a_build_that_failed_to_deploy_is_served_again(plane: Control) -> None:
    made = await plane.create()
    first = made["latest_revision_id"]
    await plane.listener.walk(made["id"], first, "AWAITING_BUILD", "BUILDING", "AWAITING_DEPLOY", "DEPLOY_FAILED")
    response = await plane.client.post(f"/v2/deployments/{made['id']}/revisions/{first}/redeploy")
    assert response.status_code == 200, response.text

    desired = (await plane.listener.desired(await plane.listener.connect()))["deployments"][0]
    assert [revision["built_from"] for revision in desired["revisions"]] == [first]


async def test_an_interrupt_stops_a_revision_in_progress(plane: Control) -> None:
    made = await plane.create()
    first = made["latest_revision_id"]
    path = f"/v2/deployments/{made['id']}/revisions"
    await plane.listener.walk(made["id"], first, "AWAITING_BUILD", "BUILDING")

    waiting = await push(plane, made["id"], "next")
    out = await plane.client.post(f"{path}/{waiting}/interrupt")
    assert (out.status_code, out.json()["status"]) == (200, "SKIPPED")
    waiting = await push(plane, made["id"], "next")
    stopped = await plane.client.post(f"{path}/{first}/interrupt")
    assert (stopped.json()["status"], stopped.json()["status_message"]) == ("INTERRUPTED", "It was interrupted.")
    assert await plane.statuses(made["id"]) == ["INTERRUPTED", "SKIPPED", "CREATING"]

    assert (await plane.listener.report(made["id"], first, "AWAITING_DEPLOY")).status_code == 409
    await plane.listener.deploy(made["id"], waiting)

    for ended in (first, waiting):
        assert (await plane.client.post(f"{path}/{ended}/interrupt")).status_code == 409

    assert (await plane.get(made["id"]))["active_revision_id"] == waiting


async def test_the_status_history_of_a_revision_is_kept(plane: Control) -> None:
    made = await plane.create()
    first = made["latest_revision_id"]
    waiting = await push(plane, made["id"], "next")
    await plane.listener.walk(made["id"], first, "AWAITING_BUILD", "AWAITING_BUILD", "BUILDING")
    await plane.listener.report(made["id"], first, "BUILD_FAILED", reason="no such ref")

    async def history(revision: str) -> list[dict]:
        response = await plane.client.get(f"/v2/deployments/{made['id']}/revisions/{revision}/history")
        return response.json()["moves"]

    moves = await history(first)
    assert [(move["status"], move["reason"]) for move in moves] == [
        ("CREATING", None),
        ("AWAITING_BUILD", None),
        ("BUILDING", None),
        ("BUILD_FAILED", "no such ref"),
    ]

    assert [move["at"] for move in moves] == sorted(move["at"] for move in moves)
    assert [move["status"] for move in await history(waiting)] == ["QUEUED", "CREATING"]
    unknown = await plane.client.get(f"/v2/deployments/{made['id']}/revisions/{made['id']}/history")
    assert unknown.status_code == 404
