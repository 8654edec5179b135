"""The audit log of a real platform: what it records, for whom, and that nothing removes or changes an entry.

A change and its entry are committed together. No entry has a value that a request carried, and refused requests cannot
fill the log.
"""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import httpx2
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from portside.audit.recording import MAX_REFUSALS_OF_ONE, SuppressedRefusals
from portside.kernel.db import Database
from portside.kernel.http.server import Server, listen
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.settings import PlatformSettings
from tests.api.control_server import create_body
from tests.commands import run_here

pytestmark = pytest.mark.asyncio(loop_scope="module")
PASSWORD = "correct horse battery"
SECRET = "sk-nobody-may-read-this"
SAME = {"sec-fetch-site": "same-origin"}


class Audited:
    """A running platform, called with its first key unless a call brings its own."""

    def __init__(self, url: str, key: str, listener_key: str, db: Database) -> None:
        self.url = url
        self.key = key
        self.listener_key = listener_key
        self.db = db
        self.client = httpx2.AsyncClient(base_url=url, headers={"x-api-key": key}, timeout=300)

    async def call(self, method: str, path: str, *, key: str | None = None, **body: Any) -> Any:
        headers = {"x-api-key": key} if key else {}
        response = await self.client.request(method, path, json=body or None, headers=headers)
        assert response.is_success, response.text
        return response.json() if response.content else None

    async def entries(self, **query: Any) -> list[Any]:
        return (await self.call_query("/audit-log", **query))["items"]

    async def call_query(self, path: str, *, key: str | None = None, **query: Any) -> Any:
        response = await self.client.get(path, params=query, headers={"x-api-key": key} if key else {})
        assert response.is_success, response.text
        return response.json()

    async def new_key(self, *permissions: str) -> str:
        made = await self.call("POST", "/api-key", description="for a test", permissions=list(permissions))
        return str(made["key"])


@pytest.fixture(scope="module")
def one_minute() -> Iterator[None]:
    """Let the minute, in which a number of refused requests is recorded, last for all tests.

    At its end the number begins again, and an entry says how many were left out.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SuppressedRefusals, "every_s", 3600.0)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(
    platform_database: str, tmp_path_factory: pytest.TempPathFactory, one_minute: None
) -> AsyncIterator[Audited]:
    settings = PlatformSettings(rate_limits=False)
    async with open_platform(Home(tmp_path_factory.mktemp("home")), settings, platform_database) as app:
        stop = asyncio.Event()
        listening = listen("127.0.0.1", 0)
        server = Server(app.asgi, draining=app.draining, grace_s=1)
        await server.open([listening])

        serving = asyncio.create_task(server.serve_until(stop))
        db = await Database.connect(platform_database)
        assert app.new_key is not None
        opened = Audited(f"http://127.0.0.1:{listening.getsockname()[1]}", app.new_key, app.listener_key, db)

        yield opened
        await opened.client.aclose()
        await db.close()
        app.changes.close()
        stop.set()
        await serving


async def test_a_change_is_recorded_with_its_actor_object_and_fields(platform: Audited) -> None:
    secrets = [{"name": "TOKEN", "value": SECRET}]
    made = await platform.call("POST", "/v2/deployments", **create_body("audited", secrets=secrets))
    await platform.call("PATCH", f"/v2/deployments/{made['id']}", secrets=[{"name": "OTHER", "value": SECRET}])
    await platform.call("DELETE", f"/v2/deployments/{made['id']}")

    deleted, changed, created = await platform.entries(object=made["id"], outcome="ok")
    assert [each["action"] for each in (created, changed, deleted)] == [
        "deployment.create",
        "deployment.update",
        "deployment.delete",
    ]

    assert created["object_name"] == "audited"
    assert created["object_ids"] == [made["id"], made["latest_revision_id"]]
    assert len(changed["object_ids"]) == 2, "the deployment and its new revision"
    assert {"name", "source", "source_config.repo_url", "secrets.TOKEN"} <= set(created["fields"])
    assert changed["fields"] == ["secrets.OTHER"]

    for each in (created, changed, deleted):
        assert each["actor_kind"] == "user"
        assert platform.key.endswith(each["short_key"][-4:])
        assert (each["address"], each["outcome"], each["count"]) == ("127.0.0.1", "ok", 1)
        assert each["client"].startswith("python-httpx")
        assert each["request_id"]
        assert datetime.fromisoformat(each["at"]) <= datetime.now(UTC)

    rows = await platform.db.pool.fetchval("select string_agg(audit_log::text, '') from audit_log")
    assert SECRET not in rows
    assert platform.key not in rows


CHANGES = [
    ("POST", "/workspaces", {"display_name": "Audited team"}, "workspace.create"),
    ("POST", "/api-key", {"description": "audited key"}, "key.create"),
    ("POST", "/orgs/current/service-keys", {"description": "audited key"}, "key.create"),
    ("POST", "/sessions", {"name": "audited project"}, "project.create"),
    ("POST", "/datasets", {"name": "audited dataset"}, "dataset.create"),
    ("POST", "/repos", {"repo_handle": "audited-prompt", "is_public": False, "readme": "audited"}, "prompt.create"),
    ("POST", "/annotation-queues", {"name": "audited queue"}, "annotation_queue.create"),
    ("POST", "/charts/section", {"title": "audited section"}, "chart_section.create"),
    (
        "POST",
        "/model-price-map",
        {"name": "audited model", "match_pattern": "audited", "prompt_cost": 1, "completion_cost": 1},
        "price.create",
    ),
    (
        "POST",
        "/v2/listeners",
        {"compute_id": "audited", "compute_type": "k8s", "compute_config": {"k8s_namespaces": ["a"]}},
        "listener.create",
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "action"), CHANGES, ids=[change[1] for change in CHANGES])
async def test_a_new_object_is_recorded_with_its_id(platform: Audited, method, path, body, action) -> None:
    made = await platform.call(method, path, **body)
    made = made.get("repo", made)
    (entry,) = await platform.entries(object=str(made["id"]))
    assert (entry["action"], entry["outcome"]) == (action, "ok")
    named = {field.split(".")[0] for field in entry["fields"]}
    assert {name for name, value in body.items() if value not in (False, {})} <= named


async def test_a_change_whose_entry_cannot_be_written_is_not_made(platform: Audited) -> None:
    """Both are one transaction, in a handler with a transaction and in one with a single statement."""
    key = await platform.call("POST", "/api-key", description="to revoke")
    await platform.db.pool.execute("alter table audit_log rename to audit_log_away")
    try:
        body = create_body("never-made")
        assert (await platform.client.post("/v2/deployments", json=body)).status_code == 500
        assert (await platform.client.delete(f"/api-key/{key['id']}")).status_code == 500
    finally:
        await platform.db.pool.execute("alter table audit_log_away rename to audit_log")

    found = await platform.call_query("/v2/deployments", name="never-made")
    assert found["resources"] == []
    assert key["id"] in {each["id"] for each in await platform.call("GET", "/api-key")}


async def test_requests_that_change_nothing_are_not_recorded(platform: Audited) -> None:
    reader = await platform.new_key("deployments:read")
    before = (await platform.entries(limit=1))[0]["seq"]
    await platform.call("GET", "/v2/deployments", key=reader)
    assert (await platform.client.post("/v2/deployments", json={"name": 1})).status_code == 422
    assert (await platform.client.delete(f"/sessions/{PASSWORD}")).status_code == 422
    run = {"name": "run", "run_type": "chain", "inputs": {}, "session_name": "not audited"}

    await platform.call("POST", "/runs", id="0190a0c0-0000-7000-8000-000000000001", **run)
    assert (await platform.entries(limit=1))[0]["seq"] == before


async def test_refused_changes_are_recorded_up_to_a_limit(platform: Audited) -> None:
    reader = await platform.new_key("deployments:read")
    for _ in range(MAX_REFUSALS_OF_ONE + 5):
        response = await platform.client.post("/v2/deployments", json=create_body("x"), headers={"x-api-key": reader})
        assert response.status_code == 403

    found = await platform.entries(actor=f"{reader[:8]}…{reader[-4:]}")
    assert [(each["action"], each["outcome"], each["status"]) for each in found] == [
        ("deployment.create", "refused", 403)
    ] * MAX_REFUSALS_OF_ONE

    # Another key at the same address has a number of its own.
    other = await platform.new_key("runs:read")
    response = await platform.client.post("/v2/deployments", json=create_body("x"), headers={"x-api-key": other})
    assert response.status_code == 403
    assert len(await platform.entries(actor=f"{other[:8]}…{other[-4:]}")) == 1


async def test_sign_ins_are_recorded_with_who_signed_in(platform: Audited) -> None:
    email = "signs-in@example.com"
    workspace = (await platform.call("GET", "/workspaces"))[0]["id"]
    member = await platform.call(
        "POST", "/orgs/current/members", email=email, password=PASSWORD, workspaces=[workspace]
    )

    async with httpx2.AsyncClient(base_url=platform.url, headers=SAME, timeout=300) as browser:
        wrong = await browser.post("/login/password", data={"email": email, "password": "wrong"})
        right = await browser.post("/login/password", data={"email": email, "password": PASSWORD})
        assert (wrong.status_code, right.status_code) == (401, 303)
        assert (await browser.post("/login/out", data={})).status_code == 303

    ended, made = await platform.entries(actor=email)
    assert (made["action"], made["outcome"], made["user_id"]) == ("session.create", "ok", member["id"])
    assert (ended["action"], ended["outcome"], ended["user_email"]) == ("session.end", "ok", email)
    (refused,) = await platform.entries(action="session.create", outcome="refused")
    assert (refused["actor_kind"], refused["object_name"], refused["status"]) == ("anonymous", email, 401)


async def test_a_listener_reads_a_secret_once(platform: Audited) -> None:
    secrets = [{"name": "READ_ME", "value": SECRET}]
    key = platform.listener_key
    body = {"compute_type": "process", "compute_id": "reads"}
    listener = await platform.call("POST", "/internal/listeners/connect", key=key, **body)
    where = f"/internal/listeners/{listener['listener_id']}/desired"
    made = await platform.call("POST", "/v2/deployments", **create_body("read", secrets=secrets))

    for _ in range(3):
        desired = await platform.call_query(where, key=key)
        assert SECRET in json.dumps(desired)

    (entry,) = await platform.entries(object=made["id"], action="secret.read")
    assert entry["fields"] == ["secrets.READ_ME"]
    assert entry["object_ids"][0] == made["id"]
    assert entry["actor_kind"] == "service_key"


async def test_a_key_that_is_shown_secrets_is_recorded(platform: Audited) -> None:
    """Once an hour for each caller and revision. Callers who are shown no value leave no entry."""
    made = await platform.call(
        "POST", "/v2/deployments", **create_body("shown", secrets=[{"name": "SHOWN", "value": SECRET}])
    )
    where = f"/v2/deployments/{made['id']}"

    async def reads() -> list[Any]:
        return await platform.entries(object=made["id"], action="secret.read")

    reader, writer = [await platform.new_key("deployments:read", *more) for more in ([], ["deployments:update"])]
    for path in (where, "/v2/deployments"):
        assert SECRET not in json.dumps(await platform.call_query(path, key=reader))

    blind = await platform.new_key("runs:read")
    assert (await platform.client.get(where, headers={"x-api-key": blind})).status_code == 403
    assert await reads() == [], "neither is the answer to the one who sent it a read"

    for path in (where, "/v2/deployments", where):
        assert SECRET in json.dumps(await platform.call_query(path, key=writer))

    (entry,) = await reads()
    assert (entry["fields"], entry["object_name"]) == (["secrets.SHOWN"], "shown")
    assert entry["object_ids"] == [made["id"], made["latest_revision_id"]]
    assert (entry["outcome"], entry["address"], entry["count"]) == ("ok", "127.0.0.1", 1)
    assert writer.endswith(entry["short_key"][-4:])

    # Another caller is another reader.
    another = await platform.new_key("deployments:read", "deployments:update")
    await platform.call_query(where, key=another)
    assert [another.endswith(each["short_key"][-4:]) for each in await reads()] == [True, False]

    # A change answers with the secrets that it did not send.
    changed = await platform.call(
        "PATCH", where, key=writer, secret_changes={"set": [{"name": "NEW", "value": "x" * 9}]}
    )
    assert changed["latest_revision_id"] != made["latest_revision_id"]
    assert [each["fields"] for each in await reads()] == [["secrets.SHOWN"]] * 3
    rows = await platform.db.pool.fetchval("select string_agg(audit_log::text, '') from audit_log")
    assert SECRET not in rows


async def test_pages_filters_and_exports_show_the_same_entries(platform: Audited) -> None:
    await platform.call("POST", "/sessions", name="=cmd|' /C calc'!A1")

    for _ in range(4):
        await platform.new_key("runs:read")

    pages = []
    cursor = None
    while True:
        page = await platform.call_query("/audit-log", action="key", limit=2, **({"cursor": cursor} if cursor else {}))
        pages += page["items"]

        cursor = page["cursor"]
        if cursor is None:
            break

    assert len(pages) >= 4
    whole = await platform.call_query("/audit-log", action="key", limit=len(pages))
    assert (whole["items"], whole["cursor"]) == (pages, None)
    assert {each["action"].split(".")[0] for each in pages} == {"key"}
    assert [each["seq"] for each in pages] == sorted({each["seq"] for each in pages}, reverse=True)
    export = await platform.client.get("/audit-log/export", params={"action": "key"})
    assert [json.loads(line) for line in export.text.splitlines()] == pages
    export = await platform.client.get("/audit-log/export", params={"format": "csv"})
    rows = list(csv.DictReader(io.StringIO(export.text)))
    assert [row["id"] for row in rows if row["action"].startswith("key.")] == [each["id"] for each in pages]
    assert "'=cmd|' /C calc'!A1" in {row["object_name"] for row in rows}

    since = pages[1]["at"]
    assert [each["seq"] for each in await platform.entries(action="key", start_time=since)] == [
        each["seq"] for each in pages[:2]
    ]
    assert (await platform.entries(action="audit_log.export"))[0]["actor_kind"] == "user"
    assert (await platform.client.get("/audit-log", params={"action": "Not an action"})).status_code == 422


async def test_entries_are_events_of_ocsf_too(platform: Audited) -> None:
    """The route, its parameters and its fields are those of LangSmith's API."""
    began = datetime.now(UTC)
    prefix = f"ocsf-{began.timestamp()}"
    made = [await platform.call("POST", "/datasets", name=f"{prefix}-{number}") for number in range(3)]
    await platform.call("DELETE", f"/datasets/{made[0]['id']}")

    period = {"start_time": began.isoformat(), "end_time": datetime.now(UTC).isoformat()}
    path = "/api/v1/audit-logs"
    deleted, *created = (await platform.call_query(path, **period))["items"]
    assert [each["api"]["operation"] for each in created] == ["create_dataset"] * 3
    assert [each["resources"] for each in created] == [[{"uid": each["id"]}] for each in reversed(made)]
    (entry,) = await platform.entries(action="dataset.delete", object=made[0]["id"])
    actor = {"user": {"uid": entry["user_id"], "credential_uid": entry["key_id"]}}

    assert deleted == {
        "class_uid": 6003,
        "class_name": "API Activity",
        "category_uid": 6,
        "category_name": "Application Activity",
        "severity_id": 99,
        "type_uid": 600304,
        "activity_id": 4,
        "activity_name": "Delete",
        "status_id": 1,
        "status": "Success",
        "time": int(datetime.fromisoformat(entry["at"]).timestamp() * 1000),
        "metadata": {"uid": entry["id"], "product": {"name": "Portside", "vendor_name": "Portside"}},
        "api": {"operation": "delete_dataset"},
        "http_request": {"http_method": "DELETE", "url": {"path": "/datasets/{dataset_id}"}},
        "http_response": {"code": entry["status"]},
        "actor": actor,
        "src_endpoint": {"ip": entry["address"], "port": None, "intermediate_ips": None},
        "resources": [{"uid": made[0]["id"]}],
        "unmapped": {
            "original_audit_log": {
                "id": entry["id"],
                "operation_name": "delete_dataset",
                "operation_succeeded": True,
                "request_time": entry["at"],
                "api_key_id": entry["key_id"],
                "user_id": entry["user_id"],
                "ls_user_id": entry["user_id"],
                "organization_id": entry["organization_id"],
                "workspace_id": entry["workspace_id"],
                "enrichments": {
                    "request_method": "DELETE",
                    "request_path": "/datasets/{dataset_id}",
                    "client_host": entry["address"],
                    "client_port": None,
                    "x_forwarded_for": None,
                    "response_status_code": entry["status"],
                    "resource_ids": [made[0]["id"]],
                },
            }
        },
    }

    # Pages by a cursor, and operations by name; those of other products are known to nobody.
    first = await platform.call_query(path, **period, limit=3, operations=["create_dataset", "create_scim_token"])
    assert [each["metadata"]["uid"] for each in first["items"]] == [each["metadata"]["uid"] for each in created]
    assert first["cursor"] is None
    page = await platform.call_query(path, **period, limit=2)
    rest = await platform.call_query(path, **period, limit=2, cursor=page["cursor"])
    assert [*page["items"], *rest["items"]] == [deleted, *created]
    assert rest["cursor"] is None

    # The end belongs to the period.
    moment = await platform.call_query(path, start_time=entry["at"], end_time=entry["at"])
    assert moment["items"] == [deleted]

    nobody = await platform.call_query(path, **period, operations=["create_scim_token"])
    assert nobody["items"] == []

    for wrong in ({"cursor": "bm9uZQ=="}, {"end_time": None}, {"limit": 101}):
        given = {name: value for name, value in {**period, **wrong}.items() if value is not None}
        assert (await platform.client.get(path, params=given)).status_code == 422


async def test_a_workspace_admin_sees_that_workspace_and_a_viewer_nothing(platform: Audited) -> None:
    team = await platform.call("POST", "/workspaces", display_name="Another team")
    in_team = {"x-tenant-id": team["id"], "x-api-key": platform.key}
    key = (await platform.client.post("/api-key", json={"description": "team's"}, headers=in_team)).json()
    shown = await platform.call_query("/workspaces/current/audit-log", key=key["key"])
    assert {each["workspace_id"] for each in shown["items"]} == {team["id"]}
    assert [each["action"] for each in shown["items"]] == ["key.create"]
    asked_for_another = {"workspace_id": (await platform.call("GET", "/workspaces"))[0]["id"]}
    assert (await platform.call_query("/workspaces/current/audit-log", key=key["key"], **asked_for_another))[
        "items"
    ] == []

    for path in ("/audit-log", "/audit-log/export", "/audit-log/verification"):
        assert (await platform.client.get(path, headers={"x-api-key": key["key"]})).status_code == 403, path

    viewer = await platform.new_key("workspaces:read", "deployments:read", "organization:read")
    for path in ("/audit-log", "/workspaces/current/audit-log", "/workspaces/current/audit-log/export"):
        assert (await platform.client.get(path, headers={"x-api-key": viewer})).status_code == 403, path


async def test_entries_cannot_be_changed(platform: Audited) -> None:
    for statement in (
        "update audit_log set user_email = 'somebody@example.com'",
        "delete from audit_log",
        "truncate audit_log",
        "delete from audit_log where seq = 1",
    ):
        with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="cannot be changed"):
            await platform.db.pool.execute(statement)

    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert (await platform.client.request(method, "/audit-log")).status_code == 405


async def test_concurrent_changes_have_one_order(platform: Audited) -> None:
    await asyncio.gather(*(platform.call("POST", "/sessions", name=f"at once {number}") for number in range(20)))
    chain = await platform.call("GET", "/audit-log/verification")
    assert chain["broken_at"] is None
    assert chain["last_seq"] - chain["first_seq"] + 1 == chain["entries"]


async def test_the_command_line_lists_exports_and_verifies(platform: Audited) -> None:
    await platform.call("POST", "/sessions", name="seen by the command line")

    async def portside(*arguments: str, code: int = 0) -> str:
        with capture_logs():
            done = await asyncio.to_thread(run_here, *arguments, "--url", platform.url, "--api-key", platform.key)

        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    shown = await portside("audit", "list", "--object", "seen by the command line")
    heading, row = shown.splitlines()
    assert heading.split()[:2] == ["TIME", "(UTC)"]
    assert "project.create" in row
    (entry,) = json.loads(await portside("audit", "list", "--object", "seen by the command line", "--json"))
    lines = await portside("audit", "export", "--object", "seen by the command line", "--since", "2020-01-01")
    assert json.loads(lines) == entry

    assert (await portside("audit", "export", "--format", "csv")).startswith("seq,id,at,")
    said = await portside("audit", "verify")
    assert "entries are intact" in said
    number, known = said.split()[-2:]

    await platform.call("POST", "/sessions", name="later")
    assert "entries are intact" in await portside("audit", "verify", "--expect", number, known)
    assert "has another hash" in await portside("audit", "verify", "--expect", number, "0" * 64, code=1)
    assert "is missing" in await portside("audit", "verify", "--expect", "999999", known, code=1)
