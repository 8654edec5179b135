"""Deployments that come from no repository: images, archives, pushed images; and the listeners that they name."""

from typing import Any
from uuid import uuid4

import pytest

from portside.control.resources import with_defaults
from tests.api.control_server import Control

ARCHIVE = b"\x1f\x8b as good as an archive"
REFERENCES = [{"name": "TOKEN", "secret_name": "tokens", "secret_key": "model"}]


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def create(plane: Control, source: str, config: dict[str, Any], revision: dict[str, Any], **more: Any) -> Any:
    body = {"name": "agent", "source": source, "source_config": config, "source_revision_config": revision, **more}
    return await plane.client.post("/v2/deployments", json=body)


async def make_cluster(plane: Control, compute_id: str, *namespaces: str) -> str:
    config = {"k8s_namespaces": list(namespaces) or None}
    body = {"compute_type": "k8s", "compute_id": compute_id, "compute_config": config}
    return (await plane.client.post("/v2/listeners", json=body)).json()["id"]


async def upload(plane: Control, deployment_id: str) -> str:
    """Put an archive where the deployment's next revision can be made of it."""
    response = await plane.client.post(
        f"/v2/deployments/{deployment_id}/upload-url", json={"supports_upload_headers": True}
    )
    put = await plane.client.put(response.json()["upload_url"], content=ARCHIVE)
    assert put.status_code == 204, put.text

    return response.json()["object_path"]


async def test_an_image_is_deployed_with_its_resources(plane: Control) -> None:
    given = {"cpu": 0.5, "memory_mb": 512, "max_scale": 3, "labels": {"team": "a"}, "min_scale": None}
    response = await create(plane, "external_docker", {"resource_spec": given}, {"image_uri": "host:5000/agent:1.2"})
    assert response.status_code == 201, response.text
    made = response.json()
    whole = with_defaults({"cpu": 0.5, "memory_mb": 512, "max_scale": 3, "labels": {"team": "a"}})
    assert (made["source"], made["image_version"]) == ("external_docker", "1.2")
    assert {name: value for name, value in made["source_config"]["resource_spec"].items() if value is not None} == whole
    assert [made["source_config"][name] for name in ("repo_url", "build_on_push", "deployment_type")] == [None] * 3

    assert made["source_revision_config"] == {
        "repo_ref": None,
        "graph_config_path": None,
        "langgraph_config_path": None,
        "repo_commit_sha": None,
        "repo_commit_author": None,
        "repo_commit_subject": None,
        "image_uri": "host:5000/agent:1.2",
        "source_tarball_path": None,
    }

    wanted = (await plane.listener.desired(await plane.listener.connect()))["deployments"][0]
    revision = wanted["revisions"][0]
    assert (revision["source"], revision["image_uri"]) == ("external_image", "host:5000/agent:1.2")
    assert (revision["resource_spec"], revision["repo_url"], wanted["k8s_namespace"]) == (whole, None, None)
    await plane.listener.walk(made["id"], revision["id"], "AWAITING_DEPLOY", "DEPLOYING", "DEPLOYED")

    found = (await plane.client.get("/v2/deployments", params={"image_version": "1.2"})).json()["resources"]
    assert [deployment["id"] for deployment in found] == [made["id"]]
    over = await plane.patch(made["id"], source_config={"resource_spec": {"memory_mb": 100}})
    assert over["latest_revision_id"] != made["latest_revision_id"]
    spec = over["source_config"]["resource_spec"]
    assert (spec["cpu"], spec["memory_mb"], spec["memory_limit_mb"], spec["labels"]) == (1, 100, 200, None)
    assert over["source_revision_config"]["image_uri"] == "host:5000/agent:1.2"

    newer = await plane.patch(made["id"], source_revision_config={"image_uri": "host:5000/agent:1.3"})
    assert newer["source_config"]["resource_spec"]["memory_mb"] == 100
    assert newer["image_version"] == "1.3"
    back = (await plane.client.post(f"/v2/deployments/{made['id']}/revisions/{revision['id']}/redeploy")).json()
    assert (back["image_version"], back["source_config"]["resource_spec"]["cpu"]) == ("1.2", 0.5)
    same = await plane.client.patch(f"/v2/deployments/{made['id']}", json=back)
    assert (same.status_code, same.json()["source_config"]) == (200, back["source_config"])


async def test_an_image_may_be_redeployed_before_it_ever_ran(plane: Control) -> None:
    made = (await create(plane, "external_image", {"resource_spec": {}}, {"image_uri": "agent"})).json()
    path = f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}/redeploy"
    assert (await plane.client.post(path)).status_code == 200
    assert await plane.statuses(made["id"]) == ["CREATING", "QUEUED"]


async def test_a_custom_url_is_kept(plane: Control) -> None:
    config = {"resource_spec": {}, "custom_url": "https://agent.example.com"}
    made = (await create(plane, "external_image", config, {"image_uri": "agent"})).json()
    report = {"status": "READY", "custom_url": "http://127.0.0.1:9000"}
    assert (await plane.client.put(f"/internal/deployments/{made['id']}/status", json=report)).status_code == 204
    assert (await plane.get(made["id"]))["source_config"]["custom_url"] == "https://agent.example.com"
    moved = await plane.patch(made["id"], source_config={"custom_url": "https://new.example.com"})
    assert moved["source_config"]["custom_url"] == "https://new.example.com"
    assert await plane.db.pool.fetchval("select direct_url from deployments") == "http://127.0.0.1:9000"

    assert moved["latest_revision_id"] == made["latest_revision_id"]


async def test_a_cleared_custom_url_is_forgotten_though_a_cluster_reported_it(plane: Control) -> None:
    config = {"resource_spec": {}, "custom_url": "https://agent.example.com/v1/"}
    made = (await create(plane, "external_image", config, {"image_uri": "agent"})).json()
    report = {"status": "READY", "custom_url": "https://agent.example.com/v1"}
    for change in ("", "https://new.example.com"):
        assert (await plane.client.put(f"/internal/deployments/{made['id']}/status", json=report)).status_code == 204
        changed = await plane.patch(made["id"], source_config={"custom_url": change})
        assert changed["source_config"]["custom_url"] == (change or None)
        cleared = await plane.patch(made["id"], source_config={"custom_url": ""})
        assert cleared["source_config"]["custom_url"] is None
        await plane.patch(made["id"], source_config={"custom_url": config["custom_url"]})


async def test_an_image_is_placed_on_its_listener(plane: Control) -> None:
    image = {"image_uri": "agent:1"}
    resources = {"resource_spec": {}}
    local = await plane.listener.connect()
    cluster = await make_cluster(plane, "cluster", "one", "two")
    missing = await create(plane, "external_image", resources, image)
    assert missing.status_code == 400

    assert missing.json()["detail"] == (
        "Source configuration error: 'source_config.listener_id' is required for workspace with available listener "
        f"IDs: ['{cluster}']"
    )

    at_cluster = {**resources, "listener_id": cluster}
    for config, named in (
        ({**resources, "listener_id": str(uuid4())}, "not a listener of this workspace"),
        ({**at_cluster, "listener_config": {"k8s_namespace": "three"}}, "k8s_namespace three"),
        ({**resources, "listener_id": local, "listener_config": {"k8s_namespace": "one"}}, "of compute type k8s"),
    ):
        refused = await create(plane, "external_image", config, image)
        assert (refused.status_code, named in refused.json()["detail"]) == (400, True), refused.text

    secrets = [{"name": "TOKEN", "value": "x"}]
    twice = await create(plane, "external_image", at_cluster, image, secrets=secrets, secret_references=REFERENCES)
    assert (twice.status_code, "TOKEN is given more than once" in twice.json()["detail"]) == (400, True)
    assert (await plane.client.get("/v2/deployments")).json()["resources"] == []

    config = {**at_cluster, "listener_config": {"k8s_namespace": "two"}}
    made = (await create(plane, "external_image", config, image, secret_references=REFERENCES)).json()
    assert made["source_config"]["listener_id"] == cluster
    assert made["source_config"]["listener_config"] == {"k8s_namespace": "two"}
    assert made["secret_references"] == REFERENCES
    assert (await plane.listener.desired(local))["deployments"] == []
    wanted = (await plane.listener.desired(cluster))["deployments"][0]
    assert (wanted["k8s_namespace"], wanted["revisions"][0]["secret_references"]) == ("two", REFERENCES)

    assert (await plane.client.delete(f"/v2/listeners/{cluster}")).status_code == 409
    found = (await plane.client.get("/v2/deployments", params={"remote_reconciled": "true"})).json()["resources"]
    assert [deployment["id"] for deployment in found] == [made["id"]]
    assert len(await plane.revisions(made["id"], remote_reconciled="true")) == 1
    cleared = await plane.patch(made["id"], secret_references=[])
    assert cleared["secret_references"] is None
    assert cleared["latest_revision_id"] != made["latest_revision_id"]

    for change in ({"listener_id": local}, {"listener_config": {"k8s_namespace": "one"}}):
        moved = await plane.client.patch(f"/v2/deployments/{made['id']}", json={"source_config": change})
        assert (moved.status_code, "cannot be changed" in moved.json()["detail"]) == (400, True)


async def test_a_namespace_is_chosen_by_default(plane: Control) -> None:
    cluster = await make_cluster(plane, "a", "one", "two")
    open_cluster = await make_cluster(plane, "b")
    for n, (listener, expected) in enumerate(((cluster, {"k8s_namespace": "one"}), (open_cluster, None))):
        config = {"resource_spec": {}, "listener_id": listener}
        response = await create(plane, "external_image", config, {"image_uri": "agent"}, name=f"agent-{n}")
        assert response.json()["source_config"]["listener_config"] == expected

    config = {"resource_spec": {}, "listener_id": open_cluster, "listener_config": {"k8s_namespace": "any"}}
    response = await create(plane, "external_image", config, {"image_uri": "agent"}, name="agent-2")
    assert response.json()["source_config"]["listener_config"] == {"k8s_namespace": "any"}


async def test_secret_references_need_a_cluster(plane: Control) -> None:
    config = {"resource_spec": {}, "listener_id": await plane.listener.connect()}
    refused = await create(plane, "external_image", config, {"image_uri": "a"}, secret_references=REFERENCES)
    assert (refused.status_code, "of compute type k8s" in refused.json()["detail"]) == (400, True)
    made = (await create(plane, "external_image", config, {"image_uri": "a"})).json()
    patch = await plane.client.patch(f"/v2/deployments/{made['id']}", json={"secret_references": REFERENCES})
    assert patch.status_code == 400


async def test_an_archive_s_deployment_waits_for_its_first_revision(plane: Control) -> None:
    secrets = [{"name": "FOO", "value": "bar"}]
    made = (await create(plane, "internal_source", {"deployment_type": "dev_zero"}, {}, secrets=secrets)).json()
    assert (made["latest_revision_id"], made["secrets"]) == (None, secrets)
    assert (await plane.get(made["id"]), await plane.revisions(made["id"])) == (made, [])
    listener_id = await plane.listener.connect()
    assert (await plane.listener.desired(listener_id))["deployments"][0]["revisions"] == []
    await plane.client.put(f"/internal/deployments/{made['id']}/status", json={"status": "READY"})

    kept = await plane.patch(made["id"], secrets=[{"name": "FOO", "value": "new"}])
    assert (kept["latest_revision_id"], kept["secrets"]) == (None, [{"name": "FOO", "value": "new"}])
    assert kept["status"] == "UNUSED"

    path = f"/v2/deployments/{made['id']}"
    for body, named in (
        ({"source_revision_config": {"langgraph_config_path": "langgraph.json"}}, "source_tarball_path is required"),
        (
            {"source_revision_config": {"langgraph_config_path": "a.json", "source_tarball_path": "made/up"}},
            "source_tarball_path must be an object_path",
        ),
    ):
        refused = await plane.client.patch(path, json=body)
        assert (refused.status_code, named in refused.json()["detail"]) == (400, True), refused.text

    assert (await plane.client.post(f"{path}/revisions", json={})).status_code == 400

    archive = await upload(plane, made["id"])
    alone = await plane.client.patch(path, json={"source_revision_config": {"source_tarball_path": archive}})
    assert (alone.status_code, "graph_config_path is required" in alone.json()["detail"]) == (400, True)
    config = {"source_tarball_path": archive, "langgraph_config_path": "langgraph.json"}
    first = await plane.patch(made["id"], revision_source="internal_source", source_revision_config=config)
    assert (first["secrets"], first["status"]) == ([{"name": "FOO", "value": "new"}], "READY")
    assert first["source_revision_config"]["source_tarball_path"] == archive

    revision = (await plane.listener.desired(listener_id))["deployments"][0]["revisions"][0]
    assert (revision["source"], revision["source_tarball_path"]) == ("internal_source", archive)
    assert revision["secrets"] == [{"name": "FOO", "value": "new"}]
    second = await plane.patch(made["id"], source_revision_config={"graph_config_path": "other.json"})
    assert second["source_revision_config"]["source_tarball_path"] == archive
    assert await plane.db.pool.fetchval("select secrets_sealed from deployments") is None


async def test_an_internal_docker_deployment_gets_its_image_later(plane: Control) -> None:
    made = (await create(plane, "internal_docker", {"deployment_type": "dev"}, {})).json()
    assert made["latest_revision_id"] is None
    wishes = {"supports_registry_username": True}
    none = await plane.client.post(f"/v2/deployments/{made['id']}/push-token", json=wishes)
    assert (none.status_code, "The platform has no image registry" in none.json()["detail"]) == (400, True)
    git = await plane.create("git")
    other = await plane.client.post(f"/v2/deployments/{git['id']}/push-token", json=wishes)

    assert (other.status_code, other.json()["detail"]) == (
        400,
        "push token is only available for 'internal_docker' source deployments",
    )

    assert (await plane.client.post(f"/v2/deployments/{uuid4()}/push-token", json=wishes)).status_code == 404
    named = await plane.patch(made["id"], source_revision_config={"image_uri": "host:5000/agent@sha256:" + "0" * 64})
    assert (named["latest_revision_id"] is not None, named["image_version"]) == (True, "sha256:" + "0" * 64)


async def test_revisions_of_one_deployment_may_come_from_several_sources(plane: Control) -> None:
    made = await plane.create(secrets=[{"name": "FOO", "value": "bar"}])
    config = {"source_tarball_path": await upload(plane, made["id"]), "graph_config_path": "b.json"}
    await plane.patch(made["id"], revision_source="internal_source", source_revision_config=config)
    newest = (await plane.revisions(made["id"]))[0]
    assert newest["source"] == "internal_source"
    assert newest["source_revision_config"]["repo_ref"] is None
    back = await plane.patch(made["id"], source_revision_config={}, secrets=[])
    assert back["source_revision_config"]["repo_ref"] == "main"

    assert back["source_revision_config"]["graph_config_path"] == "langgraph.json"
    assert (await plane.revisions(made["id"]))[0]["source"] == "git_hosting"
    assert back["secrets"] == [{"name": "FOO", "value": "bar"}]
    again = await plane.patch(made["id"], revision_source="internal_source", secrets=[])
    assert again["source_revision_config"]["graph_config_path"] == "b.json"
