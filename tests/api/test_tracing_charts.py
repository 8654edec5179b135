"""Charts over HTTP: created, read, changed, deleted; computed from runs; invisible to other workspaces."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio

from tests.api.hosted import Hosted, open_hosted

pytestmark = pytest.mark.asyncio(loop_scope="module")
DAY = {"start_time": "2026-03-01T00:00:00Z", "end_time": "2026-03-01T04:00:00Z", "stride": {"hours": 1}}
USAGE = {"metadata": {"usage_metadata": {"input_tokens": 7, "output_tokens": 5, "total_cost": 0.25}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        for hour, minute, name, seconds in ((0, 5, "a", 2), (0, 55, "b", 4), (2, 0, "a", 6), (4, 0, "a", 1)):
            start = f"2026-03-01T0{hour}:{minute:02}:00Z"
            times = {"start_time": start, "end_time": start.replace(":00Z", f":0{seconds}Z")}
            run = {"id": str(uuid4()), "name": name, "run_type": "llm", "session_name": "p", "extra": USAGE, **times}
            assert (await running.client.post("/runs", json=run)).status_code == 202
            body = {"run_id": run["id"], "key": "k", "score": seconds, "value": "good" if seconds > 2 else "bad"}

            await running.client.post("/feedback", json=body)

        yield running


async def values(server: Hosted, view: dict[str, Any] | None = None, **series: Any) -> list[tuple[str, Any, Any]]:
    body = {"bucket_info": view or DAY, "chart": {"series": [series]}}
    response = await server.client.post("/charts/preview", json=body)
    assert response.status_code == 200, response.text
    return [(point["timestamp"][11:16], point["group"], point["value"]) for point in response.json()["data"]]


async def test_metrics_are_computed_by_bucket(server: Hosted):
    hours = ["00:00", "01:00", "02:00", "03:00"]
    for metric, expected in (
        ("run_count", [2, 0, 1, 0]),
        ("latency_avg", [3, None, 6, None]),
        ("latency_p50", [3, None, 6, None]),
        ("total_tokens", [24, 0, 12, 0]),
        ("total_cost", [0.5, 0, 0.25, 0]),
        ("error_rate", [0, None, 0, None]),
        ("feedback_score_avg", [3, None, 6, None]),
        ("feedback_values", [{"bad": 1, "good": 1}, {}, {"good": 1}, {}]),
    ):
        found = await values(server, metric=metric, feedback_key="k")
        assert found == [(hour, None, value) for hour, value in zip(hours, expected, strict=True)], metric

    feedback = await values(server, metric="feedback", feedback_key="k")
    assert feedback[2][2] == {"n": 1, "avg": 6.0, "values": {"good": 1}}


async def test_series_are_filtered_and_grouped(server: Hosted):
    filtered = await values(server, metric="run_count", filters={"filter": 'eq(name, "b")'})
    assert [value for _, _, value in filtered] == [1, 0, 0, 0]
    group = {"attribute": "name"}

    assert await values(server, {**DAY, "stride": {"hours": 3}}, metric="run_count", group_by=group) == [
        ("00:00", "a", 2),
        ("03:00", "a", 0),
        ("00:00", "b", 1),
        ("03:00", "b", 0),
    ]

    one = await values(server, metric="run_count", group_by={**group, "max_groups": 1})
    assert {found for _, found, _ in one} == {"a"}
    assert await values(server, metric="run_count", filters={"session": [str(uuid4())]}, group_by=group) == []
    berlin = {**DAY, "stride": {"days": 1}, "timezone": "Europe/Berlin"}
    assert await values(server, berlin, metric="run_count") == [("23:00", None, 3)]


async def test_charts_are_stored_in_sections(server: Hosted):
    async def send(method: str, path: str, body: Any = None, status: int = 200) -> Any:
        response = await server.client.request(method, path, json=body)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    series = [{"name": "Runs", "metric": "run_count"}]
    first = await send("POST", "/charts/create", {"title": "Runs", "series": series})
    section = await send("POST", "/charts/section", {"title": "Mine", "description": "d"})
    body = {"title": "By name", "section_id": section["id"], "chart_type": "bar", "series": series, "index": 7}
    second = await send("POST", "/charts/create", body)
    assert (second["index"], second["series"][0]["name"], second["data"]) == (7, "Runs", [])
    last = await send("POST", "/charts/create", {**body, "title": "Last", "index": None})
    assert last["index"] == 8
    await send("DELETE", f"/charts/{last['id']}", status=204)
    shown = (await send("POST", "/charts", DAY))["sections"]

    assert [(part["title"], [chart["title"] for chart in part["charts"]]) for part in shown] == [
        ("Charts", ["Runs"]),
        ("Mine", ["By name"]),
    ]

    assert [point["value"] for point in shown[0]["charts"][0]["data"]] == [2, 0, 1, 0]
    later = await send("POST", "/charts", {**DAY, "after_index": 0, "omit_data": True})
    assert [part["charts"][0]["data"] for part in later["sections"]] == [[]]
    path = f"/charts/{first['id']}"
    changed = await send("PATCH", path, {"title": "All", "section_id": section["id"], "description": None})
    assert (changed["title"], changed["section_id"], changed["series"]) == ("All", section["id"], first["series"])
    assert (await send("POST", path, DAY))["data"][0]["series_id"] == first["series"][0]["id"]

    await send("PATCH", f"/charts/section/{section['id']}", {"title": "Ours"})
    assert len((await send("POST", f"/charts/section/{section['id']}", DAY))["charts"]) == 2
    assert [(part["title"], part["chart_count"]) for part in await send("GET", "/charts/section")][1] == ("Ours", 2)
    await send("DELETE", path, status=204)
    await send("POST", path, DAY, status=404)
    await send("DELETE", f"/charts/section/{section['id']}", status=204)
    await send("DELETE", f"/charts/{second['id']}", status=404)


async def test_invalid_series_are_refused_before_they_are_stored(server: Hosted):
    def chart(**fields: Any) -> dict[str, Any]:
        return {"title": "t", "series": [{"metric": "run_count", **fields}]}

    for body, status in (
        (chart(metric="colour"), 422),
        (chart(metric="feedback"), 422),
        (chart(filters={"filter": "eq("}), 400),
        (chart(group_by={"attribute": "metadata"}), 422),
        ({"title": "t", "series": []}, 422),
        ({**chart(), "section_id": str(uuid4())}, 404),
    ):
        assert (await server.client.post("/charts/create", json=body)).status_code == status, body

    for wrong in (
        {"stride": {}},
        {"stride": {"minutes": 1}, "end_time": "2026-04-01T00:00:00Z"},
        {"timezone": "Mars/North"},
        {"timezone": "../etc/passwd"},
        {"end_time": "2026-02-01T00:00:00Z"},
        {"end_time": "9999-12-31T23:59:59-05:00"},
        {"start_time": "0001-01-01T00:00:00+05:00"},
        {"start_time": "0001-01-01T00:00:00Z", "end_time": "0001-01-01T01:00:00Z", "timezone": "America/New_York"},
        {"start_time": "0001-01-01T00:00:00Z", "end_time": "0001-01-01T01:00:00Z", "timezone": "Asia/Tokyo"},
    ):
        response = await server.client.post("/charts", json={**DAY, **wrong})
        assert (response.status_code, response.json()["detail"][0]["loc"][1]) == (422, next(iter(wrong)))


async def test_charts_with_too_many_points_are_refused(server: Hosted):
    series = {"metric": "run_count", "group_by": {"attribute": "name", "max_groups": 100}}
    period = {**DAY, "end_time": "2026-03-02T09:00:00Z", "stride": {"minutes": 1}}
    for count, status in ((2, 200), (20, 422)):
        body = {"bucket_info": period, "chart": {"series": [series] * count}}
        response = await server.client.post("/charts/preview", json=body)
        assert (response.status_code, "more than 500000 points" in response.text) == (status, status == 422)


async def test_times_at_the_ends_of_the_calendar_are_accepted_or_refused(server: Hosted):
    for path, body in (
        ("/runs/query", {"start_time": "9999-12-31T23:59:59-05:00"}),
        ("/runs/stats", {"start_time": "9999-12-31T23:59:59-05:00"}),
    ):
        response = await server.client.post(path, json=body)
        assert response.status_code == 422, (path, response.text)
        assert response.json()["detail"][0]["loc"] == ["body", "start_time"]

    for times in ({"start_time": "9999-12-31T00:00:00Z"}, {"end_time": "9999-12-31T23:59:59.999999Z"}):
        response = await server.client.post("/runs/stats", json=times)
        assert response.status_code == 200, response.text


async def test_another_workspace_sees_no_charts_and_runs(server: Hosted):
    made = (await server.client.post("/charts/create", json={"title": "t", "series": [{"metric": "run_count"}]})).json()
    workspace = await server.new_workspace("Others")

    headers = {"x-api-key": await server.new_key(workspace_id=workspace)}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as other:
        path = f"/charts/{made['id']}"
        section = f"/charts/section/{made['section_id']}"
        assert (await other.post(path, json=DAY)).status_code == 404
        assert (await other.patch(path, json={"title": "x"})).status_code == 404
        assert (await other.delete(path)).status_code == 404
        assert (await other.post(section, json=DAY)).status_code == 404
        assert (await other.delete(section)).status_code == 404

        assert (await other.post("/charts", json=DAY)).json() == {"sections": []}
        body = {"bucket_info": DAY, "chart": {"series": [{"metric": "run_count"}]}}
        assert {point["value"] for point in (await other.post("/charts/preview", json=body)).json()["data"]} == {0}

        chart = {"title": "t", "series": [{"metric": "run_count"}]}
        own = (await other.post("/charts/create", json=chart)).json()
        there = {"section_id": made["section_id"]}
        assert (await other.post("/charts/create", json={**chart, **there})).status_code == 404
        assert (await other.patch(f"/charts/{own['id']}", json=there)).status_code == 404
        assert (await other.post(f"/charts/section/{own['section_id']}", json=DAY)).json()["chart_count"] == 1

    assert (await server.client.delete(path)).status_code == 204

    for permission, status in (("charts:read", 200), ("projects:read", 403)):
        reader = {"x-api-key": await server.new_key(permission)}
        assert (await server.client.post("/charts/preview", json=body, headers=reader)).status_code == status
