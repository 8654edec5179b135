"""Usage limits that a workspace sets itself, what they refuse, and what would be billed."""

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
import pytest_asyncio

from portside.tracing import quotas
from portside.tracing.quotas import list_reached_limits
from tests.api.hosted import Hosted, open_hosted

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        yield running


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have limits looked up at each delivery."""
    monkeypatch.setattr(quotas, "CACHE_S", -1.0)


async def send_run(server: Hosted, **headers: str) -> httpx2.Response:
    run = {"id": str(uuid4()), "name": "r", "run_type": "chain", "session_name": "p"}
    return await server.client.post("/runs", json=run, headers=headers)


async def limit(server: Hosted, kind: str, value: int) -> Any:
    response = await server.client.put("/usage-limits", json={"limit_type": kind, "limit_value": value})
    assert response.status_code == 200, response.text
    return response.json()


async def test_traces_beyond_the_monthly_limit_are_refused(server: Hosted):
    workspace = await server.new_workspace("Limited")
    headers = {"x-api-key": await server.new_key(workspace_id=workspace)}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as client:
        limited = Hosted(server.url, headers["x-api-key"], server.actor, server.db, client)
        assert (await client.get("/workspaces/current/usage_limits")).json()["in_reject_set"] is False
        made = await limit(limited, "monthly_traces", 2)
        first = await send_run(limited)
        assert [first.status_code, (await send_run(limited)).status_code] == [202, 202]
        refused = await send_run(limited)
        assert (refused.status_code, refused.headers.get("retry-after")) == (429, None)

        text = "Too many requests: tenant exceeded usage limits: Monthly unique traces usage limit exceeded"
        assert refused.json()["error"] == text

        for path in ("/runs/batch", "/runs/multipart", "/otel/v1/traces"):
            assert (await client.post(path, content=b"")).status_code == 429

        state = (await client.get("/workspaces/current/usage_limits")).json()
        assert state == {"in_reject_set": True, "usage_limit_type": "monthly_traces", "tenant_limit": 2}
        assert (await send_run(server)).status_code == 202, "another workspace has no limit"
        await server.db.pool.execute(
            "update traces set received_at = received_at - interval '40 days' where workspace_id = $1", workspace
        )
        assert (await send_run(limited)).status_code == 202, "another month"

        assert (await limit(limited, "monthly_traces", 1))["id"] == made["id"]
        assert (await send_run(limited)).status_code == 429
        assert (await server.client.delete(f"/usage-limits/{made['id']}")).status_code == 404, "not theirs"
        assert (await client.delete(f"/usage-limits/{made['id']}")).status_code == 204
        assert (await send_run(limited)).status_code == 202
        assert (await client.get("/usage-limits")).json() == []


async def test_longlived_traces_beyond_the_monthly_limit_are_refused(server: Hosted):
    await send_run(server)
    await limit(server, "monthly_longlived_traces", 1)
    body: dict[str, Any] = {"run_id": str(uuid4()), "key": "k"}
    refused = await server.client.post("/feedback", json=body)
    assert (refused.status_code, "longlived" in refused.json()["error"]) == (429, True)
    unextending = await server.client.post("/feedback", json={**body, "extend_trace_retention": False})
    assert unextending.status_code == 200

    assert (await send_run(server)).status_code == 202


async def test_feedback_that_is_not_refused_extends_nothing_beyond_the_limit(server: Hosted):
    """With runs in one body it would take them along, and who has a link knows nothing of the limit."""
    workspace = await server.new_workspace("Not extended")
    key = {"x-api-key": await server.new_key(workspace_id=workspace)}
    before, later = str(uuid4()), str(uuid4())

    async with httpx2.AsyncClient(base_url=server.url, headers=key) as client:
        limited = Hosted(server.url, key["x-api-key"], server.actor, server.db, client)
        await client.post("/sessions", json={"name": "short", "trace_tier": "shortlived"})

        async def send_short_run(run_id: str) -> None:
            run = {"id": run_id, "name": "r", "run_type": "chain", "session_name": "short"}
            assert (await client.post("/runs", json=run)).status_code == 202

        await send_run(limited)
        await limit(limited, "monthly_longlived_traces", 1)
        await send_short_run(before)

        for run_id in (before, later):
            body = json.dumps({"run_id": run_id, "trace_id": run_id, "key": "k", "extend_trace_retention": True})
            part = {f"feedback.{uuid4()}": (None, body, "application/json")}
            assert (await client.post("/runs/multipart", files=part)).status_code == 202

            token = (await client.post("/feedback/tokens", json={"run_id": run_id, "feedback_key": "stars"})).json()
            given = await client.post(token["url"], json={"score": 1}, headers={"x-api-key": ""})
            assert given.status_code == 200

        await send_short_run(later)
        tiers = await server.db.pool.fetch(
            "select tier from traces where workspace_id = $1 and trace_id = any($2::uuid[])", workspace, [before, later]
        )
        assert [row["tier"] for row in tiers] == ["shortlived"] * 2

        # What is asked when a trace expires, as its feedback may have come before its run.
        extending = "select count(*) from feedback where run_id = any($1::uuid[]) and extends_trace(body)"
        assert await server.db.pool.fetchval(extending, [before, later]) == 0

        # Imported traces are not billed, and their feedback extends them as it did where they come from.
        imported = str(uuid4())
        run = {
            "id": imported,
            "trace_id": imported,
            "dotted_order": f"20260101T000000000000Z{imported}",
            "name": "r",
            "run_type": "chain",
            "session_name": "short",
            "start_time": "2026-01-01T00:00:00Z",
        }
        parts = {
            f"post.{imported}": (None, json.dumps(run), "application/json"),
            f"feedback.{uuid4()}": (
                None,
                json.dumps({"run_id": imported, "trace_id": imported, "key": "k"}),
                "application/json",
            ),
        }
        answer = await server.client.post(
            "/runs/multipart", params={"imported": "true"}, files=parts, headers={"x-tenant-id": str(workspace)}
        )
        assert answer.status_code == 202, answer.text
        tier = "select tier from traces where trace_id = $1"
        assert await server.db.pool.fetchval(tier, UUID(imported)) == "longlived"

        for run_id in (before, later):
            stored = (await client.get("/feedback", params={"run": run_id})).json()
            assert {each["key"] for each in stored} == {"k", "stars"}


async def test_the_month_in_which_a_trace_became_longlived_counts(server: Hosted):
    workspace = await server.new_workspace("Extended")
    headers = {"x-api-key": await server.new_key(workspace_id=workspace)}
    assert (await send_run(server, **headers)).status_code == 202
    body = {"limit_type": "monthly_longlived_traces", "limit_value": 1}
    assert (await server.client.put("/usage-limits", json=body, headers=headers)).status_code == 200

    async def reached(change: str) -> bool:
        await server.db.pool.execute(f"update traces set {change} where workspace_id = $1", workspace)
        return "monthly_longlived_traces" in await list_reached_limits(server.db, workspace)

    assert await reached("tier = 'longlived', extended_at = null")
    assert not await reached("received_at = received_at - interval '40 days'")
    assert await reached("extended_at = now()")
    assert not await reached("extended_at = now() - interval '40 days'")


async def test_imported_traces_count_toward_no_limit(server: Hosted):
    workspace = await server.new_workspace("Imported")
    headers = {"x-api-key": await server.new_key(workspace_id=workspace)}
    assert (await send_run(server, **headers)).status_code == 202
    for kind in ("monthly_traces", "monthly_longlived_traces"):
        body = {"limit_type": kind, "limit_value": 1}
        assert (await server.client.put("/usage-limits", json=body, headers=headers)).status_code == 200

    async def reached(change: str) -> frozenset[str]:
        await server.db.pool.execute(f"update traces set {change} where workspace_id = $1", workspace)
        return await list_reached_limits(server.db, workspace)

    both = {"monthly_traces", "monthly_longlived_traces"}
    within = {"starting_on": "2020-01-01T00:00:00Z", "ending_before": "2100-01-01T00:00:00Z"}
    for extended_at in ("null", "now()"):
        assert await reached(f"is_imported = false, extended_at = {extended_at}") == both
        assert await reached("is_imported = true") == frozenset()
        billed = await server.client.get("/orgs/current/billing/usage", params=within, headers=headers)
        assert [metric["groups"] for metric in billed.json()] == [{}, {}]


async def test_a_changed_limit_holds_at_once(server: Hosted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quotas, "CACHE_S", 3600.0)
    headers = {"x-api-key": await server.new_key(workspace_id=await server.new_workspace("Changed"))}
    assert (await send_run(server, **headers)).status_code == 202
    body = {"limit_type": "monthly_traces", "limit_value": 1}
    made = await server.client.put("/usage-limits", json=body, headers=headers)
    assert (await send_run(server, **headers)).status_code == 429
    await server.client.delete(f"/usage-limits/{made.json()['id']}", headers=headers)
    assert (await send_run(server, **headers)).status_code == 202


async def test_usage_limits_require_the_manage_permission(server: Hosted):
    key = {"x-api-key": await server.new_key("workspaces:read")}
    body = {"limit_type": "monthly_traces", "limit_value": 0}
    assert (await server.client.put("/usage-limits", json=body, headers=key)).status_code == 403

    for wrong in ({**body, "limit_value": -1}, {**body, "limit_type": "daily"}):
        assert (await server.client.put("/usage-limits", json=wrong)).status_code == 422


async def test_traces_and_their_extensions_are_billed(server: Hosted):
    workspace = await server.new_workspace("Billed")
    key = await server.new_key(workspace_id=workspace)
    for _ in range(3):
        assert (await send_run(server, **{"x-api-key": key})).status_code == 202

    insert = "update traces set {} where ctid in (select ctid from traces where workspace_id = $1 limit 1)"
    await server.db.pool.execute(insert.format("tier = 'shortlived'"), workspace)
    within = {"starting_on": "2020-01-01T00:00:00Z", "ending_before": "2100-01-01T00:00:00Z"}
    response = await server.client.get("/orgs/current/billing/usage", params=within, headers={"x-api-key": key})
    traces, longlived = response.json()
    assert (traces["billable_metric_name"], traces["value"]) == ("Traces", 3)
    assert traces["groups"] == {str(workspace): 3}

    assert (longlived["value"], longlived["customer_id"]) == (2, str(server.actor.organization_id))
    whole = (await server.client.get("/orgs/current/billing/usage", params=within)).json()
    assert [metric["groups"][str(workspace)] for metric in whole] == [3, 2], "an administrator sees all workspaces"
    assert [metric["value"] for metric in whole] == [sum(metric["groups"].values()) for metric in whole]

    empty = {"starting_on": within["ending_before"], "ending_before": within["starting_on"]}
    assert (await server.client.get("/orgs/current/billing/usage", params=empty)).status_code == 400
    other = await server.client.get("/orgs/current/billing/usage", params={**within, "on_current_plan": False})
    assert other.status_code == 422


async def test_unsupported_operations_return_501(server: Hosted):
    for path in ("/generate", "/runs/rules/trigger", f"/runs/rules/{uuid4()}/trigger"):
        response = await server.client.post(path, json={})
        assert (response.status_code, set(response.json())) == (501, {"detail"}), path


async def test_reports_of_other_installations_are_counted(server: Hosted):
    async with httpx2.AsyncClient(base_url=server.url) as nobody:
        for path in ("/v1/beacon", "/api/v1/beacon", "/v1/metadata/submit", "/api/v1/metadata/submit"):
            assert (await nobody.post(path, json={"a": 1})).status_code == 200
            assert (await nobody.post(path, content=b"[1")).status_code == 422


async def test_the_current_key_is_described(server: Hosted):
    found = (await server.client.get("/auth/public")).json()
    assert found["tenant_id"] == str(server.actor.workspace_id)
    assert found["user_id"] == found["ls_user_id"] == (str(server.actor.user_id) if server.actor.user_id else None)
