"""Annotation queues and configurations of feedback, by the stock client and over HTTP."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from langsmith import Client
from langsmith.utils import LangSmithError, LangSmithNotFoundError

from portside.annotation.queues import QueueNotFound
from tests.api.hosted import Hosted, until_a_statement_waits

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def server(own_server: Hosted) -> Hosted:
    return own_server


async def create_traces(server: Hosted, count: int) -> list[UUID]:
    ids = [uuid4() for _ in range(count)]
    for run_id in ids:
        run = {"id": str(run_id), "name": "r", "inputs": {"a": 1}, "start_time": "2030-01-01T00:00:00Z"}
        assert (await server.client.post("/runs", json=run)).status_code == 202

    return ids


def open_client(server: Hosted) -> Client:
    return Client(api_url=server.url, api_key=server.key, auto_batch_tracing=False)


@pytest.mark.filterwarnings("ignore:The run_ids parameter")
async def test_the_sdk_manages_annotation_queues(server: Hosted) -> None:
    runs = await create_traces(server, 3)
    await server.db.pool.execute("update traces set tier = 'shortlived'")
    await asyncio.to_thread(work_with_queues, open_client(server), runs)
    tiers = await server.db.pool.fetch("select tier from traces")
    assert [row["tier"] for row in tiers] == ["longlived"] * 3


def work_with_queues(client: Client, runs: Any) -> None:
    rubric: Any = [{"feedback_key": "correct", "is_required": True}]
    queue = client.create_annotation_queue(name="To do", rubric_instructions="look", rubric_items=rubric)
    other = client.create_annotation_queue(name="Other", queue_id=uuid4())
    assert queue.rubric_instructions == "look"
    assert [found.name for found in client.list_annotation_queues()] == ["Other", "To do"]
    assert [found.id for found in client.list_annotation_queues(name_contains="to", limit=1)] == [queue.id]
    assert [found.id for found in client.list_annotation_queues(queue_ids=[other.id])] == [other.id]

    client.update_annotation_queue(queue.id, name="Done", description="all of it")
    shown = client.read_annotation_queue(queue.id)
    assert (shown.name, shown.description) == ("Done", "all of it")
    client.add_runs_to_annotation_queue(queue.id, run_ids=runs[:2])

    key: Any = {"run_id": runs[2], "session_id": uuid4(), "start_time": "2030-01-01T00:00:00Z"}
    client.add_runs_to_annotation_queue(queue.id, runs=[key])
    client.add_runs_to_annotation_queue(queue.id, run_ids=runs)
    assert [run.id for run in client.list_runs_from_annotation_queue(queue.id)] == runs
    assert client.get_run_from_annotation_queue(queue.id, index=1).id == runs[1]
    assert client.get_run_from_annotation_queue(queue.id, index=0).added_at is not None

    with pytest.raises(LangSmithNotFoundError):
        client.get_run_from_annotation_queue(queue.id, index=3)

    client.delete_run_from_annotation_queue(queue.id, run_id=runs[0])
    assert [run.id for run in client.list_runs_from_annotation_queue(queue.id, status="needs_my_review")] == runs[1:]
    client.delete_annotation_queue(queue.id)

    with pytest.raises(LangSmithNotFoundError):
        client.read_annotation_queue(queue.id)


async def test_reviewed_runs_are_completed_and_deleted_runs_leave_the_queue(server: Hosted) -> None:
    runs = [str(run_id) for run_id in await create_traces(server, 2)]
    queue = (await server.client.post("/annotation-queues", json={"name": "q"})).json()
    path = f"/annotation-queues/{queue['id']}"
    await server.client.post(f"{path}/runs", json=runs)

    reviewed = {"last_reviewed_time": "2030-01-01T00:00:00Z"}
    assert (await server.client.patch(f"{path}/runs/{runs[1]}", json=reviewed)).status_code == 204
    await server.client.post(f"{path}/runs", json=runs)
    (completed,) = (await server.client.get(f"{path}/runs", params={"status": "completed"})).json()
    assert (completed["id"], completed["last_reviewed_time"][:10]) == (runs[1], "2030-01-01")
    projects = (await server.client.get("/sessions")).json()
    gone = {"session_id": projects[0]["id"], "trace_ids": runs[:1]}
    assert (await server.client.post("/runs/delete", json=gone)).status_code == 202

    assert (await server.client.get(f"{path}/size")).json() == {"size": 1, "completed": 1}
    again = {"name": "q", "id": queue["id"]}
    beyond = {"last_reviewed_time": "9999-12-31T23:59:59-14:00"}
    assert (await server.client.post("/annotation-queues", json=again)).status_code == 409

    for refused, status in (
        (await server.client.get(f"{path}/runs", params={"status": "needs_others_review"}), 422),
        (await server.client.post(f"{path}/runs", json=[str(uuid4())]), 422),
        (await server.client.post(f"{path}/runs", json=[]), 422),
        (await server.client.get(f"{path}/run/-1"), 404),
        (await server.client.patch(f"{path}/runs/{uuid4()}", json=reviewed), 404),
        (await server.client.patch(f"{path}/runs/{runs[1]}", json=beyond), 422),
    ):
        assert refused.status_code == status, refused.text


async def test_no_run_is_queued_beyond_the_limit_of_longlived_traces(server: Hosted) -> None:
    (run,) = await create_traces(server, 1)
    queue = (await server.client.post("/annotation-queues", json={"name": "q"})).json()
    limit = {"limit_type": "monthly_longlived_traces", "limit_value": 0}
    assert (await server.client.put("/usage-limits", json=limit)).status_code == 200

    path = f"/annotation-queues/{queue['id']}"
    for address, body in ((f"{path}/runs", [str(run)]), (f"{path}/runs/by-key", [{"run_id": str(run)}])):
        refused = await server.client.post(address, json=body)
        assert (refused.status_code, "longlived" in refused.json()["error"]) == (429, True), address

    assert (await server.client.get(f"{path}/size")).json() == {"size": 0, "completed": 0}


async def test_runs_cannot_be_added_to_a_queue_that_is_deleted_meanwhile(server: Hosted) -> None:
    (run,) = await create_traces(server, 1)
    queue = (await server.client.post("/annotation-queues", json={"name": "q"})).json()
    async with server.db.transaction() as tx:
        await tx.connection.execute("delete from annotation_queues")
        added = asyncio.create_task(server.client.post(f"/annotation-queues/{queue['id']}/runs", json=[str(run)]))
        await until_a_statement_waits(server)

    response = await added
    assert (response.status_code, response.json()["detail"]) == (404, QueueNotFound.__doc__)


async def test_queues_are_scoped_to_a_workspace(server: Hosted) -> None:
    (run,) = await create_traces(server, 1)
    queue = (await server.client.post("/annotation-queues", json={"name": "q"})).json()
    key = {"x-api-key": await server.new_key(workspace_id=await server.new_workspace("Other"))}
    path = f"/annotation-queues/{queue['id']}"
    assert (await server.client.get("/annotation-queues", headers=key)).json() == []

    for method, there, body in (
        ("GET", path, None),
        ("PATCH", path, {"name": "x"}),
        ("DELETE", path, None),
        ("GET", f"{path}/runs", None),
        ("POST", f"{path}/runs", [str(run)]),
        ("DELETE", f"{path}/runs/{run}", None),
        ("GET", f"{path}/run/0", None),
    ):
        assert (await server.client.request(method, there, json=body, headers=key)).status_code == 404

    own = (await server.client.post("/annotation-queues", json={"name": "q"}, headers=key)).json()
    response = await server.client.post(f"/annotation-queues/{own['id']}/runs", json=[str(run)], headers=key)
    assert response.status_code == 422
    viewer = {"x-api-key": await server.new_key("annotation-queues:read")}
    assert (await server.client.get(path, headers=viewer)).status_code == 200
    assert (await server.client.delete(path, headers=viewer)).status_code == 403


async def test_the_sdk_manages_feedback_configs(server: Hosted) -> None:
    await asyncio.to_thread(check_configs, open_client(server))
    listed = (await server.client.get("/feedback-configs")).json()
    assert [config["feedback_key"] for config in listed] == ["grade"]


def check_configs(client: Client) -> None:
    scale: Any = {"type": "continuous", "min": 0, "max": 1}
    made = client.create_feedback_config("score", feedback_config=scale)
    assert (made.feedback_config["max"], made.is_lower_score_better) == (1, False)
    again = client.create_feedback_config("score", feedback_config=scale)
    assert again.modified_at == made.modified_at

    grades: Any = {"type": "categorical", "categories": [{"value": 1, "label": "good"}, {"value": 0}]}
    with pytest.raises(LangSmithError, match="different configuration"):
        client.create_feedback_config("score", feedback_config=grades)

    with pytest.raises(LangSmithError, match="different configuration"):
        client.create_feedback_config("score", feedback_config=scale, is_lower_score_better=True)

    client.create_feedback_config("grade", feedback_config=grades)
    assert client.update_feedback_config("score", is_lower_score_better=True).is_lower_score_better
    wider = client.update_feedback_config("score", feedback_config={**scale, "max": 2})
    assert (wider.feedback_config["max"], wider.is_lower_score_better) == (2, True)
    assert [config.feedback_key for config in client.list_feedback_configs()] == ["grade", "score"]
    assert [config.feedback_key for config in client.list_feedback_configs(feedback_key=["score"])] == ["score"]
    client.delete_feedback_config("score")

    with pytest.raises(LangSmithNotFoundError):
        client.delete_feedback_config("score")

    for wrong in ({"type": "categorical"}, {"type": "freeform", "min": 1}, {"type": "continuous", "min": 2, "max": 1}):
        with pytest.raises(LangSmithError, match="422"):
            client.create_feedback_config("x", feedback_config=wrong)  # type: ignore[arg-type]
