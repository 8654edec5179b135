"""The logs of revisions over HTTP: pages, filters, following, and how much of a log is kept."""

from uuid import uuid4

import pytest

from portside.control import revision_logs
from tests.api.control_server import Control

T0 = 1_750_000_000_123


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def add(plane: Control, made: dict, kind: str, *messages: str, level: str = "info", at: int = T0) -> None:
    path = f"/internal/deployments/{made['id']}/revisions/{made['latest_revision_id']}/logs"
    entries = [{"timestamp": at + n, "level": level, "message": text} for n, text in enumerate(messages)]
    response = await plane.client.post(path, json={"type": kind, "entries": entries})
    assert response.status_code == 204, response.text


async def read_logs(plane: Control, made: dict, **params: object) -> dict:
    path = f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}/logs"
    response = await plane.client.get(path, params=params)
    assert response.status_code == 200, response.text
    return response.json()


def messages(page: dict) -> list[str]:
    return [entry["message"] for entry in page["logs"]]


async def test_entries_come_back_as_they_were_sent(plane: Control) -> None:
    made = await plane.create()
    await add(plane, made, "build", "one", "two\ufffd")
    await add(plane, made, "deploy", "served")
    page = await read_logs(plane, made, type="build")

    assert [(e["timestamp"], e["level"], e["message"]) for e in page["logs"]] == [
        (T0, "INFO", "one"),
        (T0 + 1, "INFO", "two\ufffd"),
    ]

    assert messages(await read_logs(plane, made, type="deploy")) == ["served"]
    await add(plane, made, "build")
    await add(plane, made, "build", "x" * 20_000)
    assert len(messages(await read_logs(plane, made, type="build"))[-1]) == 8192


async def test_pages_neither_skip_nor_repeat_in_either_order(plane: Control) -> None:
    made = await plane.create()
    texts = [f"line {n}" for n in range(7)]
    await add(plane, made, "build", *texts)

    for order, expected in (("asc", texts), ("desc", texts[::-1])):
        found: list[str] = []
        offset = ""
        while True:
            page = await read_logs(plane, made, type="build", order=order, limit=3, offset=offset)
            found += messages(page)
            if page["next_offset"] is None:
                break

            offset = page["next_offset"]

        assert found == expected


async def test_a_follower_gets_only_what_is_new(plane: Control) -> None:
    made = await plane.create()
    await add(plane, made, "build", "one")
    offset = (await read_logs(plane, made, type="build"))["next_offset"]
    again = await read_logs(plane, made, type="build", offset=offset)
    assert again == {"logs": [], "next_offset": None}
    await add(plane, made, "build", "two", at=T0 - 5)
    assert messages(await read_logs(plane, made, type="build", offset=offset)) == ["two"]


async def test_entries_are_filtered(plane: Control) -> None:
    made = await plane.create()
    await add(plane, made, "build", "Building 100%", "done")
    await add(plane, made, "build", "boom", level="error", at=T0 + 1000)
    assert messages(await read_logs(plane, made, type="build", level="error")) == ["boom"]
    assert messages(await read_logs(plane, made, type="build", query="building 100%")) == ["Building 100%"]
    assert messages(await read_logs(plane, made, type="build", query="_")) == []
    start = "2025-06-15T15:06:41Z"
    assert messages(await read_logs(plane, made, type="build", start_time=start)) == ["boom"]

    assert messages(await read_logs(plane, made, type="build", end_time=start.removesuffix("Z"))) == [
        "Building 100%",
        "done",
    ]

    newest = {"type": "build", "order": "desc"}
    assert messages(await read_logs(plane, made, **newest, level="error")) == ["boom"]
    assert messages(await read_logs(plane, made, **newest, query="DONE")) == ["done"]
    assert messages(await read_logs(plane, made, **newest, start_time=start)) == ["boom"]
    assert messages(await read_logs(plane, made, **newest, end_time=start)) == ["done", "Building 100%"]

    path = f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}/logs"
    for bad in (
        {},
        {"type": "x"},
        {"type": "build", "limit": 1001},
        {"type": "build", "offset": "x"},
        {"type": "build", "run_id": "x"},
        {"type": "build", "query": "a\0"},
    ):
        assert (await plane.client.get(path, params=bad)).status_code == 422


async def test_the_project_routes_read_the_same_logs(plane: Control) -> None:
    made = await plane.create()
    await add(plane, made, "build", "built")
    await add(plane, made, "deploy", "first revision")
    second = await plane.patch(made["id"], source_revision_config={"repo_ref": "next"})

    await add(plane, second, "deploy", "second revision")
    await add(plane, await plane.create("other"), "deploy", "first revision of another deployment")
    base = f"/v1/projects/{made['id']}"

    async def post(path: str, **body: object) -> list[str]:
        response = await plane.client.post(base + path, json=body)
        assert response.status_code == 200, response.text
        return messages(response.json())

    assert await post(f"/revisions/{made['latest_revision_id']}/build_logs", order="asc", limit=50) == ["built"]
    assert await post(f"/revisions/{second['latest_revision_id']}/deploy_logs") == ["second revision"]
    assert await post("/deploy_logs", order="desc", limit=100) == ["second revision", "first revision"]
    assert await post("/deploy_logs", order="asc", query="FIRST", level="INFO") == ["first revision"]
    missing = await plane.client.post(f"/v1/projects/{uuid4()}/deploy_logs", json={})
    assert missing.status_code == 404


async def test_a_log_keeps_its_newest_entries(plane: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revision_logs, "MAX_LOG_ENTRIES", 5)
    made = await plane.create()
    await add(plane, made, "deploy", "kept")

    for start in range(0, 12, 4):
        await add(plane, made, "build", *(str(n) for n in range(start, start + 4)))

    assert messages(await read_logs(plane, made, type="build")) == ["7", "8", "9", "10", "11"]
    assert messages(await read_logs(plane, made, type="deploy")) == ["kept"]


async def test_logs_of_unknown_revisions_are_not_found(plane: Control) -> None:
    made = await plane.create()
    path = f"/internal/deployments/{made['id']}/revisions"
    good = {"type": "build", "entries": []}
    assert (await plane.client.post(f"{path}/{uuid4()}/logs", json=good)).status_code == 404

    entry = {"timestamp": 1, "level": "INFO", "message": "x"}
    for bad in (
        {"type": "x", "entries": []},
        {"type": "build", "entries": [entry] * 1001},
        {"type": "build", "entries": [{**entry, "timestamp": -1}]},
    ):
        assert (await plane.client.post(f"{path}/{made['latest_revision_id']}/logs", json=bad)).status_code == 422


async def test_logs_are_deleted_with_their_deployment(plane: Control) -> None:
    made = await plane.create()
    await add(plane, made, "build", "one")
    await plane.client.delete(f"/v2/deployments/{made['id']}")
    await plane.listener.drop(made["id"])
    assert await plane.db.pool.fetchval("select count(*) from revision_logs") == 0
