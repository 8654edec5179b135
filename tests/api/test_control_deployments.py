"""Deployments over HTTP: create, read, change and delete.

Secrets are in no log, and only permitted callers read their values.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from portside.control.addresses import list_addresses
from portside.control.deployments import empty_workspace
from portside.control.http import routes
from portside.identity import keys
from portside.identity.authentication import SESSION_COOKIE
from portside.identity.sessions import SignIn, begin_session
from tests.api.control_server import PACKAGES, Control, control, create_body
from tests.databases import MigratedDatabases, with_name

LISTENER = {"compute_type": "k8s", "compute_id": "a", "compute_config": {"k8s_namespaces": ["one"]}}
SECRETS = [{"name": "FOO", "value": "bar"}]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_plane(postgres: str, migrated: MigratedDatabases) -> AsyncIterator[Control]:
    """For tests that change nothing, or look only at what they made."""
    name = migrated.copy(PACKAGES)
    async with control(with_name(postgres, name)) as running:
        yield running

    await migrated.drop(name)


async def test_create_returns_the_whole_deployment(plane: Control) -> None:
    made = await plane.create(secrets=SECRETS, source_config={"deployment_type": "dev", "install_command": "npm ci"})
    assert made["source_config"] == {
        "integration_id": None,
        "repo_url": "https://git.example.com/team/agent.git",
        "deployment_type": "dev",
        "build_on_push": False,
        "custom_url": None,
        "resource_spec": None,
        "listener_id": None,
        "listener_config": None,
        "install_command": "npm ci",
        "build_command": None,
    }

    assert made["source_revision_config"] == {
        "repo_ref": "main",
        "graph_config_path": "langgraph.json",
        "langgraph_config_path": "langgraph.json",
        "repo_commit_sha": None,
        "repo_commit_author": None,
        "repo_commit_subject": None,
        "image_uri": None,
        "source_tarball_path": None,
    }

    assert made["name"] == "agent"
    assert made["source"] == "git_hosting"
    assert made["status"] == "AWAITING_DATABASE"
    assert made["tenant_id"] == str(plane.actor.workspace_id)
    assert made["secrets"] == SECRETS
    assert made["active_revision_id"] is None
    assert made["image_version"] is None

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", made["created_at"])
    assert await plane.get(made["id"]) == made
    first = await plane.client.get(f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}")
    assert first.json()["status"] == "CREATING"
    assert first.json()["source_revision_config"] == made["source_revision_config"]


async def test_field_aliases_are_accepted_and_returned(plane: Control) -> None:
    body = create_body(source="github")
    body["source_revision_config"] = {"repo_ref": "main", "langgraph_config_path": "apps/a/langgraph.json"}
    made = (await plane.client.post("/v2/deployments", json={**body, "unheard_of": 1})).json()
    assert made["source"] == "github"
    assert made["source_revision_config"]["graph_config_path"] == "apps/a/langgraph.json"
    assert (await plane.revisions(made["id"]))[0]["source"] == "github"
    install = [(await plane.client.get(f"/v1/integrations/{n}/install")).json() for n in ("github", "git_hosting")]
    assert install[0] == install[1]

    assert (install[0][0]["installation_id"], install[0][0]["name"]) == (0, "git")
    await plane.create("with-integration", source_config={"integration_id": install[0][0]["id"]})


async def test_a_create_makes_the_project_and_a_key_that_is_kept_encrypted(plane: Control) -> None:
    made = await plane.create(secrets=[{"name": "FOO", "value": "very-secret-value"}])
    listener_id = await plane.listener.connect()
    environment = (await plane.listener.desired(listener_id))["deployments"][0]["environment"]
    actor = await keys.Authenticator(plane.db).authenticate(environment["LANGSMITH_API_KEY"])
    assert actor.workspace_id == plane.actor.workspace_id
    assert actor.permissions == {"runs:*", "projects:*"}
    assert await plane.db.pool.fetchval("select name from projects") == "agent"

    rows = await plane.db.pool.fetch("select d::text || r::text as t from deployments d, revisions r")
    dump = str(rows) + str(await plane.db.pool.fetch("select secrets_sealed from revisions"))
    assert "very-secret-value" not in dump
    assert environment["LANGSMITH_API_KEY"] not in dump
    assert made["secrets"][0]["value"] == "very-secret-value"


@pytest.mark.parametrize(
    ("over", "status", "named"),
    [
        ({"name": "Not_A_Label"}, 422, "name"),
        ({"source": "nowhere"}, 422, "source"),
        ({"source": "internal_template"}, 400, "internal_template is not available"),
        ({"source": "external_image"}, 400, "source_config.repo_url"),
        ({"source_config": None}, 422, "source_config"),
        ({"source_config": {"deployment_type": "huge"}}, 422, "deployment_type"),
        ({"source_config": {"resource_spec": {"cpu": "much"}}}, 422, "resource_spec"),
        ({"source_config": {"resource_spec": {"cpu": 1}}}, 400, "resource_spec"),
        ({"source_config": {"repo_url": "ext::sh -c id"}}, 422, "repo_url"),
        ({"source_config": {"repo_url": "https://h/" + "x" * 2048}}, 422, "repo_url"),
        ({"source_config": {"custom_url": "http://x"}}, 400, "custom_url"),
        (
            {"source_config": {"build_on_push": True}, "source_revision_config": {"repo_ref": "refs/tags/v1"}},
            400,
            "build_on_push",
        ),
        ({"source_config": {"build_command": "a | b"}}, 400, "build_command"),
        ({"source_revision_config": {"repo_ref": "--upload-pack"}}, 422, "repo_ref"),
        ({"source_revision_config": {"graph_config_path": "../x"}}, 422, "graph_config_path"),
        ({"source_revision_config": {"image_uri": "x"}}, 400, "image_uri"),
        ({"secrets": [{"name": "PORT", "value": "1"}]}, 400, "PORT"),
        ({"secrets": [{"name": "A"}]}, 422, "value"),
        ({"secrets": [{"name": "A", "value": "1"}] * 501}, 422, "secrets"),
        ({"secret_references": [{"name": "A", "secret_name": "s", "secret_key": "k"}]}, 400, "secret_references"),
    ],
)
async def test_invalid_create_is_refused_and_stores_nothing(
    shared_plane: Control, over, status: int, named: str
) -> None:
    plane = shared_plane
    count = (
        "select (select count(*) from projects), (select count(*) from deployments), (select count(*) from revisions)"
    )
    before = await plane.db.pool.fetchrow(count)
    response = await plane.client.post("/v2/deployments", json=create_body(**over))
    assert response.status_code == status, response.text
    assert named in response.text

    if status == 422:
        assert {"loc", "msg", "type"} <= set(response.json()["detail"][0])

    assert await plane.db.pool.fetchrow(count) == before


async def test_a_name_is_taken_once_in_a_workspace(plane: Control) -> None:
    responses = await asyncio.gather(
        *(plane.client.post("/v2/deployments", json=create_body("same")) for _ in range(20))
    )
    assert Counter(response.status_code for response in responses) == {201: 1, 409: 19}
    assert await plane.db.pool.fetchval("select count(*) from api_keys where description = 'Deployment same'") == 1


async def test_lists_are_paged_and_filtered(plane: Control) -> None:
    ids = [(await plane.create(f"agent-{n}"))["id"] for n in range(5)]
    await plane.create("other", source_config={"deployment_type": "prod"})
    await plane.client.delete(f"/v2/deployments/{ids[0]}")

    async def names(**params: object) -> list[str]:
        response = await plane.client.get("/v2/deployments", params=params)
        assert response.status_code == 200, response.text
        assert response.json()["offset"] == params.get("offset", 0) + len(response.json()["resources"])
        return [found["name"] for found in response.json()["resources"]]

    assert await names() == ["other", "agent-4", "agent-3", "agent-2", "agent-1", "agent-0"]
    assert await names(limit=2, offset=1) == ["agent-4", "agent-3"]
    assert await names(offset=6) == []
    assert await names(name_contains="") == await names()
    assert await names(name_contains="GENT-1") == ["agent-1"]
    assert await names(name_contains="%") == []
    assert await names(name="agent-2", name_contains="agent-2") == ["agent-2"]
    assert await names(name="agent") == await names(name="AGENT-2") == []

    assert await names(status="AWAITING_DELETE") == ["agent-0"]
    assert await names(deployment_type="prod") == ["other"]
    project_id = (await plane.get(ids[3]))["tracing_project_id"]
    assert await names(tracing_project_id=project_id) == ["agent-3"]
    assert await names(deployment_ids=f"{ids[1]},{ids[2]}") == ["agent-2", "agent-1"]
    assert await names(remote_reconciled="true") == await names(image_version="1") == []
    assert await names(remote_reconciled="false", tag_value_ids="") == await names()

    for bad in ({"limit": 0}, {"limit": 101}, {"offset": -1}, {"status": "x"}, {"tag_value_ids": str(uuid4())}):
        assert (await plane.client.get("/v2/deployments", params=bad)).status_code == 422


async def test_deployments_are_never_selected_by_an_agent(plane: Control) -> None:
    """`langgraph deploy --agent-id` updates the first deployment that it gets, so the filter is refused."""
    await plane.create()

    for agent in ({"agent_id": str(uuid4()), "agent_environment": "production"}, {"agent_environment": "production"}):
        response = await plane.client.get("/v2/deployments", params=agent)
        assert response.status_code == 422
        assert "select a deployment by its name" in response.text

    response = await plane.client.post("/v2/deployments", json=create_body() | {"agent": {"agent_id": str(uuid4())}})
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "agent"]


async def test_ids_that_are_unknown_or_of_another_workspace_are_not_found(plane: Control) -> None:
    made = await plane.create()
    _, headers = await create_workspace(plane)
    unknown = str(uuid4())
    for deployment_id, who in ((unknown, {}), (made["id"], headers)):
        path = f"/v2/deployments/{deployment_id}"
        responses = [
            await plane.client.get(path, headers=who),
            await plane.client.patch(path, json={"display_name": "x"}, headers=who),
            await plane.client.delete(path, headers=who),
            await plane.client.get(f"{path}/revisions", headers=who),
            await plane.client.get(f"{path}/revisions/{made['latest_revision_id']}", headers=who),
            await plane.client.put(f"/internal{path[3:]}/status", json={"status": "READY"}, headers=who),
            await plane.client.delete(f"/internal{path[3:]}", headers=who),
        ]

        assert {response.status_code for response in responses} == {404}
        assert {response.json()["detail"] for response in responses} == {f"Deployment ID {deployment_id} not found."}

    assert (await plane.client.get("/v2/deployments", headers=headers)).json()["resources"] == []
    assert (await plane.client.get("/v2/deployments/xyz")).status_code == 422
    response = await plane.client.get(f"/v2/deployments/{made['id']}/revisions/{unknown}")
    assert (response.status_code, response.json()["detail"]) == (404, f"Revision ID {unknown} not found.")


async def create_workspace(plane: Control) -> tuple[UUID, dict[str, str]]:
    """Make a workspace, and a key that may do everything in it."""
    workspace_id = await plane.db.pool.fetchval(
        "insert into workspaces (id, organization_id, display_name, tenant_handle) "
        "select gen_random_uuid(), organization_id, 'x', 'x' from workspaces returning id"
    )
    owner = keys.Owner(plane.actor.organization_id, workspace_id)
    return workspace_id, {"x-api-key": (await keys.create_key(plane.db, owner, keys.KeyRequest())).key}


# What has to be sent for a route to do something.
BODIES: dict[str, Any] = {
    "PATCH /v1/integrations/git_hosting/{integration_id}": {"token": "stolen"},
    "PATCH /v2/listeners/{listener_id}": {"version": "stolen"},
    "PUT /v2/deployments/{deployment_id}/scale": {"max_scale": 7},
    "PUT /internal/deployments/{deployment_id}/status": {"status": "READY", "custom_url": "http://127.0.0.1:1"},
    "PUT /internal/deployments/{deployment_id}/metrics": {"replicas": 7},
    "PUT /internal/deployments/{deployment_id}/revisions/{revision_id}/status": {"status": "AWAITING_BUILD"},
    "POST /internal/deployments/{deployment_id}/revisions/{revision_id}/logs": {
        "type": "build",
        "entries": [{"timestamp": 1, "level": "INFO", "message": "stolen"}],
    },
}
QUERIES = {"GET /v2/deployments/{deployment_id}/revisions/{revision_id}/logs": {"type": "build"}}
TABLES = (
    "deployments",
    "revisions",
    "listeners",
    "integrations",
    "source_archives",
    "deployment_metrics",
    "revision_logs",
)


async def read_tables(plane: Control, workspace_id: UUID) -> dict[str, list[str]]:
    """Return the rows of a workspace, of which nobody has changed anything if they are equal."""
    found = {}
    for table in TABLES:
        owner = "workspace_id = $1"
        if table in {"revisions", "source_archives", "deployment_metrics", "revision_logs"}:
            owner = "deployment_id in (select id from deployments where workspace_id = $1)"
        rows = await plane.db.pool.fetch(f"select x::text as row from {table} x where {owner} order by 1", workspace_id)
        found[table] = [row["row"] for row in rows]

    return found


async def test_nothing_of_another_workspace_is_found_or_changed_on_any_route(plane: Control) -> None:
    made = await plane.create(secrets=[{"name": "MINE", "value": "of-nobody-else"}])
    listener_id = await plane.listener.connect("local")
    await plane.listener.desired(listener_id)
    cluster = (await plane.client.post("/v2/listeners", json=LISTENER)).json()["id"]
    account = {"name": "mine", "kind": "gitea", "base_url": "http://127.0.0.1:9", "token": "of-nobody-else"}
    integration = (await plane.client.post("/v1/integrations/git_hosting", json=account)).json()["id"]
    await plane.client.post(f"/v2/deployments/{made['id']}/upload-url")
    report = {"status": "READY", "custom_url": "http://127.0.0.1:9000"}
    await plane.client.put(f"/internal/deployments/{made['id']}/status", json=report)
    await plane.client.put(f"/internal/deployments/{made['id']}/metrics", json={"replicas": 1})

    # No listener has this one yet, and the key of the other one has to be replaced by its listener.
    waiting = await plane.create("waiting")
    await plane.db.pool.execute("update api_keys set expires_at = now() where description = 'Deployment agent'")
    before = await read_tables(plane, plane.actor.workspace_id)
    assert all(before[table] for table in TABLES if table != "revision_logs")

    stranger, headers = await create_workspace(plane)
    ids = {
        "deployment_id": made["id"],
        "project_id": made["id"],
        "revision_id": made["latest_revision_id"],
        "integration_id": integration,
    }
    for route in routes:
        if route.public or not route.path_types:
            continue

        label = f"{route.method} {route.path}"
        body = BODIES.get(label, {} if route.body_type is not None else None)
        for listener in (listener_id, cluster) if "listener_id" in route.path_types else (listener_id,):
            path = route.path.format(**ids, listener_id=listener)
            response = await plane.client.request(
                route.method, path, json=body, params=QUERIES.get(label), headers=headers
            )
            assert response.status_code == 404, (label, response.status_code, response.text)
            assert "of-nobody-else" not in response.text

    many = await plane.client.delete("/v2/deployments", params={"deployment_ids": [made["id"]]}, headers=headers)
    assert many.status_code == 404
    for source, config in (
        ("git_hosting", {"integration_id": integration, "repo_url": "http://127.0.0.1:9/a.git"}),
        ("external_image", {"listener_id": cluster, "resource_spec": {}, "repo_url": None}),
    ):
        revision = {"image_uri": "a:1"} if source == "external_image" else {"graph_config_path": "langgraph.json"}
        theirs = {"name": "theirs", "source": source, "source_config": config, "source_revision_config": revision}
        response = await plane.client.post("/v2/deployments", json=theirs, headers=headers)
        assert (response.status_code, "workspace" in response.text) == (400, True), response.text

    for path in ("/v2/deployments", "/v2/listeners"):
        assert (await plane.client.get(path, headers=headers)).json()["resources"] == []

    integrations = (await plane.client.get("/v1/integrations/git_hosting/install", headers=headers)).json()
    assert [found["name"] for found in integrations] == ["git"]

    # A listener of the same name is another one, and takes nothing.
    theirs = {"compute_type": "process", "compute_id": "local"}
    connected = await plane.client.post("/internal/listeners/connect", json=theirs, headers=headers)
    other_id = connected.json()["listener_id"]
    assert other_id != listener_id
    desired = await plane.client.get(f"/internal/listeners/{other_id}/desired", headers=headers)
    assert desired.json()["deployments"] == []
    assert await list_addresses(plane.db, stranger) == []
    await empty_workspace(plane.db, stranger)

    assert await read_tables(plane, plane.actor.workspace_id) == before
    assert (await plane.get(waiting["id"]))["status"] == "AWAITING_DATABASE"


async def test_every_verb_needs_its_permission(plane: Control) -> None:
    made = await plane.create()
    listener = (await plane.client.post("/v2/listeners", json=LISTENER)).json()["id"]
    of_revision = f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}"

    calls: dict[str, list[tuple[str, str, object]]] = {
        "deployments:create": [
            ("POST", "/v2/deployments", create_body("second")),
            ("POST", "/v2/listeners", {**LISTENER, "compute_id": "b"}),
        ],
        "deployments:read": [
            ("GET", f"/v2/deployments{rest}", None)
            for rest in (
                "",
                f"/{made['id']}",
                f"/{made['id']}/revisions",
                of_revision[15:],
                f"{of_revision[15:]}/history",
            )
        ]
        + [("GET", "/v2/listeners", None), ("GET", f"/v2/listeners/{listener}", None)],
        "deployments:update": [
            ("PATCH", f"/v2/deployments/{made['id']}", {"display_name": "x"}),
            ("POST", f"/v2/deployments/{made['id']}/revisions", {}),
            ("POST", f"{of_revision}/interrupt", None),
            ("POST", f"{of_revision}/redeploy", None),
            ("POST", f"/v2/deployments/{made['id']}/push-token", {}),
            ("PATCH", f"/v2/listeners/{listener}", {"version": "2"}),
        ],
        "deployments:delete": [
            ("DELETE", f"/v2/listeners/{listener}", None),
            ("DELETE", f"/v2/deployments?deployment_ids={made['id']}", None),
            ("DELETE", f"/v2/deployments/{made['id']}", None),
        ],
        "listeners:work": [
            ("POST", "/internal/listeners/connect", {"compute_type": "process", "compute_id": "x"}),
        ],
    }

    for permission, requests in calls.items():
        others = await plane.headers(*(set(calls) - {permission}))
        for method, url, body in requests:
            assert (await plane.client.request(method, url, json=body, headers=others)).status_code == 403
            assert (await plane.client.request(method, url, json=body, headers={"x-api-key": "no"})).status_code == 401

    for permission, requests in calls.items():
        own = await plane.headers(permission)
        for method, url, body in requests:
            # A revision that was never built is refused to whoever may ask: 400.
            expected = (400,) if "redeploy" in url or "push-token" in url else (200, 201, 204)
            response = await plane.client.request(method, url, json=body, headers=own)
            assert response.status_code in expected, (method, url, response.text)


async def test_several_deployments_are_deleted_all_or_none(plane: Control) -> None:
    ids = [(await plane.create(f"agent-{n}"))["id"] for n in range(3)]
    unknown = str(uuid4())
    response = await plane.client.delete("/v2/deployments", params={"deployment_ids": [ids[0], unknown]})
    assert (response.status_code, response.json()["detail"]) == (404, f"Deployment ID {unknown} not found.")
    assert (await plane.get(ids[0]))["status"] == "AWAITING_DATABASE"
    response = await plane.client.delete("/v2/deployments", params={"deployment_ids": [ids[1], ids[0], ids[1]]})
    assert (response.status_code, set(response.json()["deployment_ids"])) == (200, set(ids[:2]))

    states = [(await plane.get(deployment_id))["status"] for deployment_id in ids]
    assert states == ["AWAITING_DELETE", "AWAITING_DELETE", "AWAITING_DATABASE"]
    assert await plane.statuses(ids[0]) == ["INTERRUPTED"]

    for bad in ({}, {"deployment_ids": "x"}, {"deployment_ids": [str(uuid4()) for _ in range(101)]}):
        refused = await plane.client.delete("/v2/deployments", params=bad)
        assert (refused.status_code, refused.json()["detail"][0]["loc"][:2]) == (422, ["query", "deployment_ids"])


async def test_secret_values_need_the_update_permission(plane: Control) -> None:
    made = await plane.create(secrets=SECRETS)
    reader = await plane.headers("deployments:read")
    seen = (await plane.client.get(f"/v2/deployments/{made['id']}", headers=reader)).json()
    assert (seen["secrets"], made["secrets"]) == ([{"name": "FOO", "value": ""}], SECRETS)


async def test_credentials_in_an_address_that_was_stored_earlier_need_the_update_permission(plane: Control) -> None:
    made = await plane.create()
    stored = "https://me:token@git.example.com/team/agent.git"
    await plane.db.pool.execute("update deployments set repo_url = $1", stored)
    reader = await plane.headers("deployments:read")
    listed = (await plane.client.get("/v2/deployments", headers=reader)).json()["resources"]
    assert [each["source_config"]["repo_url"] for each in listed] == ["https://git.example.com/team/agent.git"]
    assert (await plane.get(made["id"]))["source_config"]["repo_url"] == stored


async def test_a_browser_sees_no_values_of_secrets(plane: Control) -> None:
    """A page that runs foreign code in it could read them; command lines and programs need them."""
    made = await plane.create(secrets=SECRETS)
    user_id = plane.actor.user_id
    headers = {"x-api-key": "", "x-tenant-id": str(plane.actor.workspace_id)}

    async def read_as(kind: Literal["bearer", "cookie"]) -> Any:
        sign_in = SignIn(kind=kind, method="password", lifetime=timedelta(hours=1), user_id=user_id)
        session = await begin_session(plane.db, plane.services.authenticator, sign_in)
        shown = {"cookie": f"{SESSION_COOKIE}={session.token}", "bearer": f"Bearer {session.token}"}[kind]
        name = {"cookie": "cookie", "bearer": "authorization"}[kind]
        response = await plane.client.get(f"/v2/deployments/{made['id']}", headers={**headers, name: shown})
        assert response.status_code == 200, response.text
        return response.json()["secrets"]

    assert await read_as("bearer") == SECRETS
    assert await read_as("cookie") == [{"name": "FOO", "value": ""}]


async def test_patch_creates_a_revision_only_for_revision_fields(plane: Control) -> None:
    made = await plane.create(secrets=SECRETS)
    same = await plane.patch(
        made["id"], display_name="Mine", source_config={"install_command": "npm ci", "build_on_push": False}
    )
    assert same["latest_revision_id"] == made["latest_revision_id"]
    assert (same["display_name"], same["source_config"]["install_command"]) == ("Mine", "npm ci")
    assert same["updated_at"] > made["updated_at"]

    nothing = await plane.patch(made["id"], display_name=None, source_config=None, secrets=None)
    assert (nothing["display_name"], nothing["latest_revision_id"]) == ("Mine", made["latest_revision_id"])
    ref = await plane.patch(made["id"], source_revision_config={"repo_ref": "next"})
    assert ref["latest_revision_id"] != made["latest_revision_id"]
    assert ref["source_revision_config"]["repo_ref"] == "next"
    assert ref["source_revision_config"]["graph_config_path"] == "langgraph.json"
    assert ref["secrets"] == SECRETS

    path = await plane.patch(made["id"], source_revision_config={"langgraph_config_path": "b.json"})
    assert path["source_revision_config"]["repo_ref"] == "next"
    assert path["source_revision_config"]["langgraph_config_path"] == "b.json"
    secrets = await plane.patch(made["id"], secrets=[{"name": "BAR", "value": "1"}])
    assert secrets["secrets"] == [{"name": "BAR", "value": "1"}]
    assert len(await plane.revisions(made["id"])) == 4


async def test_an_empty_list_of_secrets_removes_them_unless_it_comes_with_a_deploy(plane: Control) -> None:
    made = await plane.create(secrets=SECRETS)
    # The stock `langgraph deploy` sends this where there is no .env file.
    deployed = await plane.patch(made["id"], source_revision_config={"repo_ref": "next"}, secrets=[])
    assert deployed["secrets"] == SECRETS
    assert (await plane.patch(made["id"], source_revision_config={}, secrets=[]))["secrets"] == SECRETS
    emptied = await plane.patch(made["id"], secrets=[])
    assert emptied["secrets"] == []
    assert len(await plane.revisions(made["id"])) == 4

    assert (await plane.get(made["id"]))["secrets"] == []


async def test_changes_of_single_secrets_at_the_same_moment_all_count(plane: Control) -> None:
    made = await plane.create(secrets=[{"name": "FOO", "value": "old"}, {"name": "GONE", "value": "1"}])
    changes = [{"set": [{"name": f"KEY_{n}", "value": str(n)}]} for n in range(6)]
    changes += [{"set": [{"name": "FOO", "value": "new"}]}, {"unset": ["GONE", "NEVER_SET"]}]
    await asyncio.gather(*(plane.patch(made["id"], secret_changes=each) for each in changes))

    kept = {secret["name"]: secret["value"] for secret in (await plane.get(made["id"]))["secrets"]}
    assert kept == {"FOO": "new", **{f"KEY_{n}": str(n) for n in range(6)}}
    many = [{"name": f"MORE_{n}", "value": "1"} for n in range(500)]
    refused = await plane.client.patch(f"/v2/deployments/{made['id']}", json={"secret_changes": {"set": many}})
    assert (refused.status_code, "at most 500" in refused.text) == (422, True)


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"name": "other"}, 400, "name"),
        ({"source": "external_image"}, 400, "source"),
        ({"revision_source": "external_image"}, 400, "revision_source"),
        ({"revision_source": "internal_source", "secrets": []}, 400, "source_tarball_path is required"),
        ({"source_config": {"repo_url": "https://h/other"}}, 400, "source_config.repo_url"),
        ({"source_config": {"integration_id": str(uuid4())}}, 400, "source_config.integration_id"),
        ({"source_config": {"deployment_type": "prod"}}, 400, "source_config.deployment_type"),
        ({"source_config": {"listener_id": str(uuid4())}}, 400, "source_config.listener_id"),
        ({"source_config": {"listener_config": {"k8s_namespace": "x"}}}, 400, "source_config.listener_config"),
        ({"source_config": {"custom_url": "http://x"}}, 400, "source_config.custom_url"),
        ({"source_config": {"resource_spec": {}}}, 400, "source_config.resource_spec"),
        (
            {"source_config": {"build_on_push": True}, "source_revision_config": {"repo_ref": "refs/tags/v1"}},
            400,
            "build_on_push",
        ),
        ({"source_revision_config": {"image_uri": "x:1"}}, 400, "image_uri"),
        ({"source_revision_config": {"repo_ref": "a..b"}}, 422, "repo_ref"),
        ({"display_name": ""}, 422, "display_name"),
        ({"display_name": "a\u0000b"}, 422, "display_name"),
        ({"secrets": [{"name": "PATH", "value": "1"}]}, 400, "PATH"),
        ({"secrets": "x"}, 422, "secrets"),
        ({"secrets": [], "secret_changes": {}}, 400, "send one of them"),
        ({"secret_changes": {"set": [{"name": "PATH", "value": "1"}]}}, 400, "PATH"),
        ({"secret_changes": {"set": [{"name": "A", "value": "1"}] * 2}}, 400, "more than once"),
        ({"secret_references": [{"name": "A", "secret_name": "s", "secret_key": "k"}]}, 400, "secret_references"),
        ({"secret_references": [{"name": "1", "secret_name": "s", "secret_key": "k"}]}, 422, "name"),
    ],
)
async def test_a_bad_patch_is_refused_and_changes_nothing(shared_plane: Control, body, status: int, named: str) -> None:
    plane = shared_plane
    made = await plane.create(f"agent-{uuid4()}")
    response = await plane.client.patch(f"/v2/deployments/{made['id']}", json=body)
    assert response.status_code == status, response.text
    assert named in response.text
    assert await plane.get(made["id"]) == made


async def test_a_deployment_can_be_patched_with_its_own_response(plane: Control) -> None:
    made = await plane.create(secrets=SECRETS, source="github")
    await plane.listener.client.put(
        f"/internal/deployments/{made['id']}/status", json={"status": "READY", "custom_url": "http://127.0.0.1:9"}
    )

    deployment = await plane.get(made["id"])
    again = await plane.client.patch(f"/v2/deployments/{made['id']}", json=deployment)
    assert again.status_code == 200, again.text
    assert again.json()["source_config"] == deployment["source_config"]
    assert "status" in again.headers["x-ignored-fields"]

    # Its address is not one that the owner has asked for, and may change.
    moved = {"status": "READY", "custom_url": "http://127.0.0.1:10"}
    await plane.listener.client.put(f"/internal/deployments/{made['id']}/status", json=moved)
    assert (await plane.get(made["id"]))["source_config"]["custom_url"] == "http://127.0.0.1:10"


async def test_a_tag_stored_earlier_counts_in_a_later_patch(plane: Control) -> None:
    made = await plane.create(source_revision_config={"repo_ref": "refs/tags/v1"})
    response = await plane.client.patch(
        f"/v2/deployments/{made['id']}", json={"source_config": {"build_on_push": True}}
    )
    assert (response.status_code, "tag" in response.json()["detail"]) == (400, True)


async def test_a_deleted_deployment_stays_readable_until_its_compute_is_gone(plane: Control) -> None:
    made = await plane.create()
    listener_id = await plane.listener.connect()
    key = (await plane.listener.desired(listener_id))["deployments"][0]["environment"]["LANGSMITH_API_KEY"]
    assert (await plane.listener.drop(made["id"])).status_code == 409
    gone = await plane.client.delete(f"/v2/deployments/{made['id']}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await plane.client.delete(f"/v2/deployments/{made['id']}")).status_code == 204

    assert (await plane.get(made["id"]))["status"] == "AWAITING_DELETE"
    assert await plane.statuses(made["id"]) == ["INTERRUPTED"]
    path = f"/v2/deployments/{made['id']}"
    for method, rest, body in (
        ("PATCH", "", {"secrets": []}),
        ("POST", "/revisions", {}),
        ("PUT", "/scale", {"max_scale": 2}),
        ("POST", "/service-key/rotate", None),
    ):
        assert (await plane.client.request(method, path + rest, json=body)).status_code == 409, rest

    assert (await plane.client.post("/v2/deployments", json=create_body())).status_code == 409
    late = await plane.client.put(f"/internal/deployments/{made['id']}/status", json={"status": "READY"})
    assert late.status_code == 409
    assert (await plane.listener.report(made["id"], made["latest_revision_id"], "DEPLOYED")).status_code == 409

    assert (await plane.listener.desired(listener_id))["deployments"][0]["status"] == "AWAITING_DELETE"
    assert (await plane.listener.drop(made["id"])).status_code == 204
    assert (await plane.client.get(f"/v2/deployments/{made['id']}")).status_code == 404
    assert (await plane.listener.desired(listener_id))["deployments"] == []
    assert (await plane.client.get("/auth", headers={"x-api-key": key})).status_code == 401
    assert await plane.db.pool.fetchval("select count(*) from projects where deleted_at is null") == 1
    await plane.create()


async def test_a_deployment_is_deleted_although_its_key_was_revoked_before(plane: Control) -> None:
    made = await plane.create()
    await plane.db.pool.execute("update api_keys set revoked_at = now() where used_by = 'deployment agent'")
    await plane.client.delete(f"/v2/deployments/{made['id']}")
    assert (await plane.listener.drop(made["id"])).status_code == 204
    assert (await plane.client.get("/v2/deployments")).json()["resources"] == []


@pytest.mark.parametrize(("asked", "left"), [("true", 0), ("false", 1)])
async def test_delete_tracing_project_deletes_the_project(plane: Control, asked: str, left: int) -> None:
    made = await plane.create()
    params = {"delete_tracing_project": asked}
    await plane.client.delete(f"/v2/deployments/{made['id']}", params=params)
    # A delete that is repeated without the wish does not withdraw it.
    await plane.client.delete(f"/v2/deployments/{made['id']}")
    assert await plane.db.pool.fetchval("select count(*) from projects where deleted_at is null") == 1
    await plane.listener.drop(made["id"])
    assert await plane.db.pool.fetchval("select count(*) from projects where deleted_at is null") == left
