"""Listeners over HTTP: how they register, what they are told to deploy, and what they report back."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from portside.control import desired_state
from portside.control.addresses import list_addresses
from portside.control.custom_hosts import parse_custom_hosts
from portside.control.deployments import move_repositories
from portside.control.resources import with_defaults
from portside.control.scope import PlatformAddress
from portside.control.sql import sql
from tests.api.control_server import ADDRESS, Control
from tests.conftest import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_listener_keeps_its_id_and_is_listed(plane: Control) -> None:
    listener_id = await plane.listener.connect("local", version="1")
    connected = (await plane.client.get(f"/v2/listeners/{listener_id}")).json()
    assert await plane.listener.connect("local", version="2") == listener_id
    # Reports from before its last start say nothing about its version.
    assert (await plane.client.get(f"/v2/listeners/{listener_id}")).json()["updated_at"] > connected["updated_at"]
    await plane.listener.connect("other")
    response = (await plane.client.get("/v2/listeners")).json()
    assert response["offset"] == 2
    listed = response["resources"][1]
    assert listed["id"] == listener_id

    assert (listed["compute_type"], listed["compute_id"], listed["version"]) == ("process", "local", "2")
    assert listed["compute_config"] == {"k8s_namespaces": None}
    paged = (await plane.client.get("/v2/listeners", params={"limit": 1, "offset": 1})).json()
    assert ([found["id"] for found in paged["resources"]], paged["offset"]) == ([listener_id], 2)

    for bad in ({"compute_type": "abacus"}, {"compute_id": ""}, {"compute_id": "a\0"}):
        body = {"compute_type": "process", "compute_id": "x", **bad}
        assert (await plane.client.post("/internal/listeners/connect", json=body)).status_code == 422


async def test_a_listener_of_a_cluster_is_made_first_and_connects_later(plane: Control) -> None:
    body = {"compute_type": "k8s", "compute_id": "cluster", "compute_config": {"k8s_namespaces": ["one"]}}
    made = (await plane.client.post("/v2/listeners", json=body)).json()
    path = f"/v2/listeners/{made['id']}"
    assert (made["compute_config"], made["version"], made["last_seen_at"]) == ({"k8s_namespaces": ["one"]}, None, None)
    again = await plane.client.post("/v2/listeners", json=body)

    assert (again.status_code, again.json()["detail"]) == (
        409,
        f"Listener for LangSmith workspace ID '{plane.actor.workspace_id}' and compute ID 'cluster' already exists.",
    )

    patched = await plane.client.patch(path, json={"compute_config": {"k8s_namespaces": ["two"]}, "version": "3"})
    assert (patched.json()["compute_config"], patched.json()["version"]) == ({"k8s_namespaces": ["two"]}, "3")
    kept = await plane.client.patch(path, json={"version": None})
    assert kept.json()["version"] == "3"
    assert await plane.listener.connect("cluster", compute_type="k8s", version="4") == made["id"]
    seen = (await plane.client.get(path)).json()
    assert (seen["compute_config"], seen["version"]) == ({"k8s_namespaces": ["two"]}, "4")

    assert seen["last_seen_at"] is not None
    other = {"compute_type": "process", "compute_id": "cluster"}
    assert (await plane.client.post("/internal/listeners/connect", json=other)).status_code == 409
    assert (await plane.client.delete(path)).status_code == 204

    for response in (
        await plane.client.get(path),
        await plane.client.delete(path),
        await plane.client.patch(path, json={}),
    ):
        assert (response.status_code, response.json()["detail"]) == (404, f"Listener ID {made['id']} not found.")

    for bad in (
        {"compute_type": "process"},
        {"compute_config": None},
        {"compute_config": {"k8s_namespaces": ["B"]}},
        {"compute_config": {"k8s_namespaces": []}},
        {"compute_id": None},
    ):
        assert (await plane.client.post("/v2/listeners", json={**body, **bad})).status_code == 422


async def test_a_listener_with_deployments_stays(plane: Control) -> None:
    listener_id = await plane.listener.connect()
    made = await plane.create()
    await plane.listener.desired(listener_id)
    refused = await plane.client.delete(f"/v2/listeners/{listener_id}")
    assert (refused.status_code, "has deployments" in refused.json()["detail"]) == (409, True)
    await plane.client.delete(f"/v2/deployments/{made['id']}")
    await plane.listener.drop(made["id"])

    assert (await plane.client.delete(f"/v2/listeners/{listener_id}")).status_code == 204


async def test_deployments_of_a_silent_listener_are_unknown(plane: Control) -> None:
    listener_id = await plane.listener.connect()
    made = await plane.create()
    await plane.listener.desired(listener_id)
    await plane.client.put(f"/internal/deployments/{made['id']}/status", json={"status": "READY"})
    assert (await plane.get(made["id"]))["status"] == "READY"
    await plane.listener.walk(made["id"], made["latest_revision_id"], "CREATE_FAILED")
    assert (await plane.get(made["id"]))["status"] == "UNUSED"

    await plane.db.pool.execute("update listeners set last_seen_at = now() - interval '3 minutes'")
    silent = await plane.get(made["id"])
    assert (silent["status"], "was last seen at" in silent["status_message"]) == ("UNKNOWN", True)
    found = (await plane.client.get("/v2/deployments", params={"status": "UNKNOWN"})).json()["resources"]
    assert [deployment["id"] for deployment in found] == [made["id"]]
    await plane.listener.desired(listener_id)
    assert (await plane.get(made["id"]))["status"] == "UNUSED"

    await plane.db.pool.execute("update listeners set last_seen_at = now() - interval '3 minutes'")
    await plane.client.delete(f"/v2/deployments/{made['id']}")
    deleted = await plane.get(made["id"])
    assert (deleted["status"], deleted["status_message"]) == ("AWAITING_DELETE", None)


async def test_the_desired_state_holds_all_that_a_listener_needs(plane: Control) -> None:
    made = await plane.create(
        secrets=[{"name": "FOO", "value": "bar"}], source_config={"install_command": "npm ci", "build_command": "x"}
    )
    listener_id = await plane.listener.connect()
    deployment = (await plane.listener.desired(listener_id))["deployments"][0]
    revision = deployment["revisions"][0]
    key = deployment["environment"].pop("LANGSMITH_API_KEY")
    assert key.startswith("lsv2_sk_")

    assert deployment["environment"] == {
        "LANGSMITH_AUTH_ENDPOINT": f"{ADDRESS.url}/v2/deployments/{made['id']}",
        "LANGSMITH_ENDPOINT": ADDRESS.url,
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_PROJECT": "agent",
        "LANGCHAIN_PROJECT": "agent",
        "LANGSMITH_HOST_PROJECT_ID": made["id"],
        "LANGSMITH_HOST_PROJECT_NAME": "agent",
        "LANGSMITH_TENANT_ID": made["tenant_id"],
    }

    assert {name: deployment[name] for name in ("id", "name", "status", "active_revision_id", "custom_url")} == {
        "id": made["id"],
        "name": "agent",
        "status": "AWAITING_DATABASE",
        "active_revision_id": None,
        "custom_url": None,
    }

    assert revision.pop("created_at")
    assert revision == {
        "id": made["latest_revision_id"],
        "number": 1,
        "status": "CREATING",
        "source": "git_hosting",
        "repo_url": made["source_config"]["repo_url"],
        "repo_ref": "main",
        "repo_commit_sha": None,
        "graph_config_path": "langgraph.json",
        "source_tarball_path": None,
        "image_uri": None,
        "install_command": "npm ci",
        "build_command": "x",
        "secrets": [{"name": "FOO", "value": "bar"}],
        "secret_references": [],
        "repo_credential": None,
        "built_from": None,
        "resource_spec": with_defaults({}),
    }


async def test_what_is_built_gets_the_resources_of_its_type(plane: Control) -> None:
    expected = {"dev": (1, 1, 1024), "prod": (10, 2, 2048)}
    for kind in expected:
        await plane.create(kind, source_config={"deployment_type": kind})

    desired = (await plane.listener.desired(await plane.listener.connect()))["deployments"]
    specs = {each["name"]: each["revisions"][0]["resource_spec"] for each in desired}
    assert {name: (spec["max_scale"], spec["cpu"], spec["memory_mb"]) for name, spec in specs.items()} == expected


async def test_servers_trust_the_front_beside_the_proxies_of_the_operator(plane: Control) -> None:
    await plane.create()
    plane.set_services(address=PlatformAddress(ADDRESS.url, trusted_proxies="192.0.2.1,192.0.2.2"))
    (deployment,) = (await plane.listener.desired(await plane.listener.connect()))["deployments"]
    assert deployment["environment"]["TRUSTED_PROXIES"] == "127.0.0.1,::1,192.0.2.1,192.0.2.2"


async def test_the_desired_revisions_are_the_unfinished_ones_and_the_active_one(plane: Control) -> None:
    made = await plane.create()
    listener_id = await plane.listener.connect()
    await plane.listener.deploy(made["id"], made["latest_revision_id"])
    failed = (await plane.patch(made["id"], source_revision_config={"repo_ref": "bad"}))["latest_revision_id"]

    await plane.listener.walk(made["id"], failed, "CREATE_FAILED")
    at_work = (await plane.patch(made["id"], source_revision_config={"repo_ref": "b"}))["latest_revision_id"]
    waiting = (await plane.patch(made["id"], source_revision_config={"repo_ref": "c"}))["latest_revision_id"]
    deployment = (await plane.listener.desired(listener_id))["deployments"][0]

    assert [(r["id"], r["number"], r["status"]) for r in deployment["revisions"]] == [
        (made["latest_revision_id"], 1, "DEPLOYED"),
        (at_work, 3, "CREATING"),
        (waiting, 4, "QUEUED"),
    ]

    assert deployment["active_revision_id"] == made["latest_revision_id"]


async def test_a_replaced_revision_is_there_for_a_listener_that_lost_its_build(plane: Control) -> None:
    """A thread may be pinned to it. Nobody but a listener reads its secrets there."""
    made = await plane.create(secrets=[{"name": "TOKEN", "value": "one"}])
    listener_id = await plane.listener.connect()
    await plane.listener.deploy(made["id"], made["latest_revision_id"], "a" * 40)
    newer = (await plane.patch(made["id"], source_revision_config={"repo_ref": "b"}))["latest_revision_id"]

    await plane.listener.deploy(made["id"], newer)
    desired = (await plane.listener.desired(listener_id))["deployments"]
    listed = [r["id"] for d in desired if d["id"] == made["id"] for r in d["revisions"]]
    assert listed == [newer]

    path = f"/internal/deployments/{made['id']}/revisions/{made['latest_revision_id']}"
    found = (await plane.client.get(path)).json()
    assert (found["repo_commit_sha"], found["number"], found["secrets"]) == (
        "a" * 40,
        1,
        [{"name": "TOKEN", "value": "one"}],
    )

    reader = await plane.headers("deployments:read", "deployments:update")
    assert (await plane.client.get(path, headers=reader)).status_code == 403
    assert (await plane.client.get(path.replace(made["id"], str(uuid4())))).status_code == 404


async def test_repositories_in_a_home_that_was_moved_are_found_again(plane: Control) -> None:
    urls = ("/srv/old/examples/one", "file:///srv/old/two", "/srv/older/x", "https://git.example/srv/old/x")
    made = [await plane.create(f"moved-{number}", source_config={"repo_url": url}) for number, url in enumerate(urls)]
    assert await move_repositories(plane.db, "/srv/old", "/new") == 2
    found = [(await plane.get(each["id"]))["source_config"]["repo_url"] for each in made]
    assert found == ["/new/examples/one", "file:///new/two", *urls[2:]]


async def test_a_deployment_report_is_stored(plane: Control) -> None:
    made = await plane.create()
    path = f"/internal/deployments/{made['id']}/status"
    response = await plane.client.put(path, json={"status": "READY", "custom_url": "http://127.0.0.1:9000"})
    assert (response.status_code, response.content) == (204, b"")
    seen = await plane.get(made["id"])
    assert (seen["status"], seen["source_config"]["custom_url"]) == ("READY", "http://127.0.0.1:9000")
    await plane.client.put(path, json={"status": "UNKNOWN", "reason": "disk full"})

    seen = await plane.get(made["id"])
    assert (seen["status"], seen["status_message"]) == ("UNKNOWN", "disk full")
    assert seen["source_config"]["custom_url"] == "http://127.0.0.1:9000"
    assert (await plane.client.put(path, json={"status": "AWAITING_DELETE"})).status_code == 422

    # The reason of an earlier report is over, and so is one from before a delete.
    await plane.client.put(path, json={"status": "READY"})
    assert (await plane.get(made["id"]))["status_message"] is None
    await plane.client.put(path, json={"status": "UNKNOWN", "reason": "disk full"})
    await plane.client.delete(f"/v2/deployments/{made['id']}")
    assert (await plane.get(made["id"]))["status_message"] is None


class CountingRouter:
    """Counts how often the front reads the addresses again."""

    def __init__(self) -> None:
        self.refreshes = 0

    async def refresh(self) -> None:
        self.refreshes += 1

    def find_objection(self, url: str) -> str | None:
        return None


async def test_the_front_follows_a_deployment_whose_address_changes(plane: Control) -> None:
    router = CountingRouter()
    plane.set_services(router=router)
    made = await plane.create()

    async def report(**body: object) -> int:
        await plane.client.put(f"/internal/deployments/{made['id']}/status", json={"status": "READY", **body})
        return router.refreshes

    assert await report() == 0
    assert await report(custom_url="http://127.0.0.1:9000") == 1
    assert await report(custom_url="http://127.0.0.1:9000") == 1
    assert await report(custom_url="http://127.0.0.1:9001") == 2
    await plane.patch(made["id"], display_name="Mine")
    assert router.refreshes == 3
    await plane.client.delete(f"/v2/deployments/{made['id']}")
    assert router.refreshes == 4
    await plane.client.delete("/v2/deployments", params={"deployment_ids": [made["id"]]})
    assert router.refreshes == 5


async def test_the_front_routes_to_machines_and_no_more_to_what_is_deleted(plane: Control) -> None:
    machine = await plane.listener.connect("machine")
    cluster = await plane.listener.connect("cluster", compute_type="k8s")
    made = {}
    for name, listener_id in (("here", machine), ("there", cluster), ("gone", machine)):
        image = {"image_uri": "a:1"}
        config = {"listener_id": listener_id, "resource_spec": {}, "repo_url": None}
        body = {"name": name, "source": "external_image", "source_config": config, "source_revision_config": image}
        made[name] = (await plane.client.post("/v2/deployments", json=body)).json()
        report = {"status": "READY", "custom_url": f"http://127.0.0.1/{name}"}
        await plane.client.put(f"/internal/deployments/{made[name]['id']}/status", json=report)

    await plane.client.delete(f"/v2/deployments/{made['gone']['id']}")
    found = await list_addresses(plane.db, plane.actor.workspace_id)
    assert [(each.name, each.direct_url) for each in found] == [("here", "http://127.0.0.1/here")]


async def test_deployments_without_servers_are_not_ready_when_the_platform_starts(plane: Control) -> None:
    serving, down, empty, deleted = [await plane.create(name) for name in ("serving", "down", "empty", "deleted")]
    for deployment in (serving, down, deleted):
        await plane.listener.deploy(deployment["id"], deployment["latest_revision_id"])

    for deployment, report in ((serving, {"status": "READY"}), (down, {"status": "UNKNOWN", "reason": "disk full"})):
        await plane.client.put(f"/internal/deployments/{deployment['id']}/status", json=report)

    await plane.client.put(f"/internal/deployments/{empty['id']}/status", json={"status": "READY"})
    await plane.client.delete(f"/v2/deployments/{deleted['id']}")
    deployments = (serving, down, empty, deleted)
    await desired_state.report_stopped_deployments(plane.db, [UUID(deployment["id"]) for deployment in deployments])

    seen = [await plane.get(deployment["id"]) for deployment in deployments]
    assert [(deployment["status"], deployment["status_message"]) for deployment in seen] == [
        ("UNKNOWN", "No server runs since the platform was stopped; one is being started."),
        ("UNKNOWN", "disk full"),
        ("READY", None),
        ("AWAITING_DELETE", None),
    ]


async def wait_for(plane: Control, listener_id: str, change: Callable[[], Awaitable[Any]]) -> Any:
    """Return the desired state for which a listener waited while something changed."""
    generation = (await plane.listener.desired(listener_id))["generation"]
    waiting = asyncio.create_task(plane.listener.desired(listener_id, generation, 30))
    await asyncio.wait({waiting}, timeout=0.05)
    assert not waiting.done()
    await change()

    found = await asyncio.wait_for(waiting, 60)
    assert found["generation"] > generation
    return found


async def test_every_change_wakes_a_waiting_listener(plane: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody looks again without being woken.
    monkeypatch.setattr(desired_state, "POLL_S", 3600.0)
    listener_id = await plane.listener.connect()
    made: dict = {}

    async def create() -> None:
        made.update(await plane.create())

    async def push() -> None:
        await plane.patch(made["id"], source_revision_config={"repo_ref": "next"})

    async def end() -> None:
        await plane.listener.walk(made["id"], made["latest_revision_id"], "INTERRUPTED")

    async def delete() -> None:
        await plane.client.delete(f"/v2/deployments/{made['id']}")

    async def drop() -> None:
        await plane.listener.drop(made["id"])

    for change in (create, push, end, delete, drop):
        found = await wait_for(plane, listener_id, change)

    assert found["deployments"] == []


async def test_what_an_operator_changes_reaches_a_waiting_listener(
    plane: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desired_state, "POLL_S", 3600.0)
    made = await plane.create()
    account = {"name": "host", "kind": "github", "token": "old"}
    integration = (await plane.client.post("/v1/integrations/git_hosting", json=account)).json()["id"]
    listener_id = await plane.listener.connect()
    path = f"/v2/deployments/{made['id']}"

    for method, changed, body in (
        ("POST", f"{path}/revisions/{made['latest_revision_id']}/interrupt", None),
        ("PUT", f"{path}/scale", {"max_scale": 2}),
        ("POST", f"{path}/service-key/rotate", None),
        ("PATCH", f"/v1/integrations/git_hosting/{integration}", {"token": "new"}),
    ):
        request = partial(plane.client.request, method, changed, json=body)
        await wait_for(plane, listener_id, request)


async def test_a_change_by_another_process_is_found_by_polling(plane: Control) -> None:
    listener_id = await plane.listener.connect()
    made = await plane.create()
    generation = (await plane.listener.desired(listener_id))["generation"]
    waiting = asyncio.create_task(plane.listener.desired(listener_id, generation, 20))

    await plane.db.pool.execute("update desired_generations set generation = generation + 1")
    assert (await asyncio.wait_for(waiting, 60))["deployments"][0]["id"] == made["id"]


async def test_a_wait_times_out_and_build_steps_do_not_end_it(plane: Control) -> None:
    listener_id = await plane.listener.connect()
    made = await plane.create()
    generation = (await plane.listener.desired(listener_id))["generation"]
    waiting = asyncio.create_task(plane.listener.desired(listener_id, generation, 0.3))

    await plane.listener.walk(made["id"], made["latest_revision_id"], "AWAITING_BUILD", "BUILDING")
    assert (await waiting)["generation"] == generation
    assert (await plane.listener.desired(listener_id, generation + 5, 20))["generation"] == generation
    unknown = await plane.client.get(f"/internal/listeners/{uuid4()}/desired")
    assert unknown.status_code == 404
    too_long = await plane.client.get(f"/internal/listeners/{listener_id}/desired", params={"wait_s": 31})
    assert too_long.status_code == 422


async def test_a_deployment_belongs_to_the_listener_that_took_it_first(plane: Control) -> None:
    cluster = await plane.listener.connect("cluster", compute_type="k8s")
    await plane.create()
    assert (await plane.listener.desired(cluster))["deployments"] == []
    first = await plane.listener.connect("first")
    assert len((await plane.listener.desired(first))["deployments"]) == 1
    second = await plane.listener.connect("second")
    assert (await plane.listener.desired(second))["deployments"] == []

    async def is_seen() -> bool:
        return len((await plane.listener.desired(first))["deployments"]) == 1

    assert await eventually(is_seen)


async def test_a_deployment_on_a_listener_that_is_just_deleted_is_refused(plane: Control) -> None:
    listener = {"compute_type": "k8s", "compute_id": "cluster", "compute_config": {"k8s_namespaces": ["one"]}}
    listener_id = (await plane.client.post("/v2/listeners", json=listener)).json()["id"]
    body = {
        "name": "late",
        "source": "external_image",
        "source_config": {"listener_id": listener_id, "resource_spec": {}},
        "source_revision_config": {"image_uri": "a:1"},
    }

    async with plane.db.transaction() as deletion:
        await deletion.fetchval(sql.lock_listener, id=UUID(listener_id), workspace_id=plane.actor.workspace_id)
        await deletion.execute(sql.delete_listener, id=UUID(listener_id))
        creation = asyncio.create_task(plane.client.post("/v2/deployments", json=body))

        await eventually(
            lambda: plane.db.pool.fetchval(
                "select exists (select from pg_stat_activity where datname = current_database()"
                " and wait_event_type = 'Lock')"
            )
        )

    refused = await creation
    assert refused.status_code == 400, refused.text
    assert "is not a listener of this workspace" in refused.json()["detail"]


async def test_a_deployment_on_a_cluster_gets_only_a_host_that_the_operator_allows(plane: Control) -> None:
    listener = {"compute_type": "k8s", "compute_id": "cluster", "compute_config": {"k8s_namespaces": ["one"]}}
    listener_id = (await plane.client.post("/v2/listeners", json=listener)).json()["id"]

    async def create(name: str, url: str) -> httpx2.Response:
        body = {
            "name": name,
            "source": "external_image",
            "source_config": {"listener_id": listener_id, "resource_spec": {}, "custom_url": url},
            "source_revision_config": {"image_uri": "a:1"},
        }
        return await plane.client.post("/v2/deployments", json=body)

    refused = await create("early", "https://one.agents.example.com")
    assert (refused.status_code, "CUSTOM_HOSTS" in refused.text) == (400, True)

    plane.set_services(custom_hosts=parse_custom_hosts("*.agents.example.com", ["portside.agents.example.com"]))
    made = await create("first", "https://one.agents.example.com/v1")
    assert made.status_code == 201

    taken = await create("second", "https://ONE.agents.example.com/v2")
    assert (taken.status_code, "another deployment" in taken.text) == (400, True)

    # An address that a listener reported is taken as well.
    machine = await plane.create("machine")
    report = {"status": "READY", "custom_url": "https://two.agents.example.com:8443/x"}
    await plane.client.put(f"/internal/deployments/{machine['id']}/status", json=report)
    assert (await create("third", "https://two.agents.example.com")).status_code == 400

    # The owner may move it on its own host, and not to another that is taken or the platform's.
    path = f"/v2/deployments/{made.json()['id']}"
    moves = {
        "https://one.agents.example.com/v2": 200,
        "https://portside.agents.example.com": 400,
        str(plane.client.base_url): 400,
    }
    for url, status in moves.items():
        assert (await plane.client.patch(path, json={"source_config": {"custom_url": url}})).status_code == status


async def test_sizes_above_the_limits_of_a_cluster_are_refused_with_their_field(plane: Control) -> None:
    limits = {"cpu": 4, "memory_mb": 8192, "scale": 3}
    listener_id = await plane.listener.connect("cluster", compute_type="k8s", size_limits=limits)

    def build(name: str, spec: dict[str, object]) -> dict[str, object]:
        return {
            "name": name,
            "source": "external_image",
            "source_config": {"listener_id": listener_id, "resource_spec": spec},
            "source_revision_config": {"image_uri": "a:1"},
        }

    async def read_problem(response: httpx2.Response) -> tuple[list[object], str]:
        assert response.status_code == 422, response.text
        (problem,) = response.json()["detail"]
        return problem["loc"], problem["msg"]

    sidecar = {"name": "proxy", "image": "p:1", "resources": {"limits": {"memory": "9Gi"}}}
    large: dict[str, tuple[dict[str, object], list[object]]] = {
        "cpu": ({"db_cpu": 8}, ["db_cpu"]),
        "sidecar": ({"sidecars": [sidecar]}, ["sidecars", 0, "resources", "limits", "memory"]),
    }
    for name, (spec, path) in large.items():
        loc, message = await read_problem(await plane.client.post("/v2/deployments", json=build(name, spec)))
        assert loc == ["body", "source_config", "resource_spec", *path]
        assert "this listener allows at most" in message

    made = await plane.client.post("/v2/deployments", json=build("fits", {"cpu": 2}))
    assert made.status_code == 201, made.text
    deployment = f"/v2/deployments/{made.json()['id']}"
    change = {"source_config": {"resource_spec": {"cpu": 6}}}
    assert (await read_problem(await plane.client.patch(deployment, json=change)))[0][-1] == "cpu"
    assert (await read_problem(await plane.client.put(f"{deployment}/scale", json={"max_scale": 4})))[0] == [
        "body",
        "max_scale",
    ]

    # What it says when it connects again counts; what it has is left alone.
    await plane.listener.connect("cluster", compute_type="k8s", size_limits=None)
    allowed = await plane.client.patch(deployment, json=change)
    assert allowed.status_code == 200, allowed.text


async def test_a_deployment_that_cannot_be_deleted_yet_says_why(plane: Control) -> None:
    made = await plane.create("agent")
    path = f"/internal/deployments/{made['id']}/status"
    assert (await plane.client.delete(f"/v2/deployments/{made['id']}")).status_code == 204
    for wrong in ({"status": "READY"}, {"status": "UNUSED", "reason": "Idle."}, {"status": "UNKNOWN"}):
        assert (await plane.client.put(path, json=wrong)).status_code == 409

    report = {"status": "UNKNOWN", "reason": "It could not be deleted yet: the namespace is gone."}
    assert (await plane.client.put(path, json=report)).status_code == 204
    shown = await plane.get(made["id"])
    assert (shown["status"], shown["status_message"]) == ("AWAITING_DELETE", report["reason"])
