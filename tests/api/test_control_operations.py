"""The scale and the metrics of a deployment."""

from uuid import uuid4

import pytest

from portside.kernel.metrics import format_metrics
from tests.api.control_server import Control

NONE = {"min_scale": None, "max_scale": None, "queue_min_scale": None, "queue_max_scale": None}


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_scale_reaches_the_listener_without_a_new_revision(plane: Control):
    deployment = (await plane.create("scaled"))["id"]
    path = f"/v2/deployments/{deployment}/scale"
    assert (await plane.client.get(path)).json() == NONE
    listener = await plane.listener.connect()
    before = await plane.listener.desired(listener)
    response = await plane.client.put(path, json={"max_scale": 4, "queue_min_scale": 2})
    assert (response.status_code, response.json()) == (200, {**NONE, "max_scale": 4, "queue_min_scale": 2})

    after = await plane.listener.desired(listener)
    assert after["generation"] > before["generation"]
    (found,) = [one for one in after["deployments"] if one["id"] == deployment]
    assert found["scale"] == {**NONE, "max_scale": 4, "queue_min_scale": 2}
    assert len(await plane.revisions(deployment)) == 1
    assert (await plane.client.put(path, json={"min_scale": 2})).json() == {**NONE, "min_scale": 2}
    assert (await plane.client.get(path)).json() == {**NONE, "min_scale": 2}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"min_scale": 3, "max_scale": 2}, 400, "min_scale must not be greater than max_scale: 3 > 2"),
        ({"queue_min_scale": 3, "queue_max_scale": 2}, 400, "queue_min_scale must not be greater"),
        ({"min_scale": 0}, 422, "min_scale"),
        ({"max_scale": 1001}, 422, "max_scale"),
        ({"queue_max_scale": "2"}, 422, "queue_max_scale"),
    ],
)
async def test_an_invalid_scale_is_refused(plane: Control, body: dict[str, object], status: int, words: str):
    deployment = (await plane.create(f"refused-{uuid4().hex[:8]}"))["id"]
    response = await plane.client.put(f"/v2/deployments/{deployment}/scale", json=body)
    assert (response.status_code, words in response.text) == (status, True), response.text
    assert (await plane.client.get(f"/v2/deployments/{deployment}/scale")).json() == NONE


async def test_the_latest_metrics_are_shown(plane: Control):
    deployment = (await plane.create("measured"))["id"]
    path = f"/v2/deployments/{deployment}/metrics"
    empty = (await plane.client.get(path)).json()
    assert set(empty.values()) == {None, False}
    reported = {"replicas": 2, "cpu": 0.25, "memory_mb": 210.5, "restarts": 1, "pending_runs": 3, "problem": "why"}
    reported["server_version"] = "0.1.0+g1234567"
    assert (await plane.client.put(f"/internal{path.removeprefix('/v2')}", json=reported)).status_code == 204

    found = (await plane.client.get(path)).json()
    assert {**empty, **reported, "measured_at": found["measured_at"]} == found
    assert found["measured_at"].endswith(("Z", "+00:00"))
    assert (await plane.get(deployment))["server_version"] == "0.1.0+g1234567"
    assert f'portside_deployment_replicas{{deployment_id="{deployment}"}} 2.0' in format_metrics()[0].decode()
    assert f'portside_deployment_active_runs{{deployment_id="{deployment}"}} NaN' in format_metrics()[0].decode()

    await plane.client.delete(f"/v2/deployments/{deployment}")
    assert (await plane.listener.drop(deployment)).status_code == 204
    assert deployment not in format_metrics()[0].decode()


async def test_the_time_until_sleep_reaches_the_listener_without_a_new_revision(plane: Control):
    made = await plane.create("sleepy")
    path = f"/v2/deployments/{made['id']}"
    assert (made["sleep_after_s"], made["is_asleep"]) == (0, False)
    listener = await plane.listener.connect()
    assert [one["sleep_after_s"] for one in (await plane.listener.desired(listener))["deployments"]] == [0]
    changed = await plane.client.patch(path, json={"sleep_after_s": 900})
    assert (changed.status_code, changed.json()["sleep_after_s"]) == (200, 900)

    assert [one["sleep_after_s"] for one in (await plane.listener.desired(listener))["deployments"]] == [900]
    # Null keeps it, and 0 is never.
    assert (await plane.client.patch(path, json={"display_name": "Sleepy"})).json()["sleep_after_s"] == 900
    assert len(await plane.revisions(made["id"])) == 1
    report = {"replicas": 0, "is_asleep": True}
    assert (await plane.client.put(f"/internal/deployments/{made['id']}/metrics", json=report)).status_code == 204
    assert (await plane.get(made["id"]))["is_asleep"]
    assert (await plane.client.patch(path, json={"sleep_after_s": 0})).json()["sleep_after_s"] == 0

    for wrong in (-1, 2_592_001, "15m"):
        assert (await plane.client.patch(path, json={"sleep_after_s": wrong})).status_code == 422


@pytest.mark.parametrize("path", ["scale", "metrics"])
async def test_scale_and_metrics_of_an_unknown_deployment_are_not_found(plane: Control, path: str):
    response = await plane.client.get(f"/v2/deployments/{uuid4()}/{path}")
    assert response.status_code == 404
    writes = {"scale": f"/v2/deployments/{uuid4()}/scale", "metrics": f"/internal/deployments/{uuid4()}/metrics"}
    assert (await plane.client.put(writes[path], json={})).status_code == 404
