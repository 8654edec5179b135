"""Billable usage over HTTP: exact counts in the right buckets, and only for those who may read them."""

import csv
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from portside.kernel import spool
from portside.usage.exports import export_usage
from portside.usage.ranges import read_range
from portside.usage.types import GroupBy, UsageQuery
from tests.api.hosted import Hosted, in_new_workspace

PATH = "/api/v1/orgs/current/billing/granular-usage"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def server(shared_hosted: Hosted) -> AsyncIterator[Hosted]:
    async with in_new_workspace(shared_hosted) as running:
        yield running


async def receive(server: Hosted, project: str, count: int = 1, key: str | None = None) -> list[UUID]:
    """Deliver traces of two runs each."""
    roots = [uuid4() for _ in range(count)]
    runs = [{"id": str(root), "name": "r", "run_type": "chain", "session_name": project} for root in roots]
    children = [{**parent, "id": str(uuid4()), "parent_run_id": parent["id"]} for parent in runs]
    headers = {"x-api-key": key} if key else None
    response = await server.client.post("/runs/batch", json={"post": [*children, *runs]}, headers=headers)
    assert response.status_code == 202

    return roots


async def set_received_at(server: Hosted, roots: list[UUID], moment: str) -> None:
    """Let traces have been received at another time."""
    update = "update traces set received_at = $2 where trace_id = any($1)"
    await server.db.pool.execute(update, roots, datetime.fromisoformat(moment))


async def ask(server: Hosted, **params: Any) -> Any:
    query = {"workspace_ids": str(server.actor.workspace_id), **params}
    return await server.client.get(PATH, params={name: value for name, value in query.items() if value is not None})


async def test_counts_by_each_dimension(own_server: Hosted):
    service = await own_server.new_key("runs:create")
    await receive(own_server, "a", 3)
    await receive(own_server, "b", 2, service)
    await receive(own_server, "b")

    actor = own_server.actor

    async def counts(group_by: str) -> list[tuple[dict[str, Any], int]]:
        return [(record["dimensions"], record["traces"]) for record in await own_server.usage(group_by)]

    workspace = {"workspace_id": str(actor.workspace_id), "workspace_name": "Default"}
    assert await counts("workspace") == [(workspace, 6)]
    by_project = await counts("project")
    assert {(d["project_name"], traces) for d, traces in by_project} == {("a", 3), ("b", 3)}
    assert all(set(d) == {"project_id", "project_name"} for d, _ in by_project)

    assert await counts("user") == [
        ({"user_id": str(actor.user_id), "user_email": actor.user_email}, 4),
        ({"user_id": None, "user_email": None}, 2),
    ]

    assert await counts("api_key") == [
        ({"api_key_short_key": actor.short_key}, 4),
        ({"api_key_short_key": f"lsv2_sk_…{service[-4:]}"}, 2),
    ]


async def test_buckets_and_the_half_open_range(own_server: Hosted):
    for moment in ("2026-01-15T00:00:00Z", "2026-01-15T23:59:59.999999Z", "2026-01-16T00:00:00Z"):
        await set_received_at(own_server, await receive(own_server, "a"), moment)

    response = await ask(own_server, start_time="2026-01-15T00:00:00Z", end_time="2026-01-16T00:00:00Z")
    day = {"workspace_id": str(own_server.actor.workspace_id), "workspace_name": "Default"}
    assert response.json() == {
        "stride": {"days": 1, "hours": 0},
        "usage": [{"time_bucket": "2026-01-15T00:00:00Z", "dimensions": day, "traces": 2}],
    }

    response = await ask(own_server, start_time="2026-01-15T12:30:00Z", end_time="2026-01-16T00:30:00Z")
    assert response.json()["stride"] == {"days": 0, "hours": 1}
    buckets = [(record["time_bucket"], record["traces"]) for record in response.json()["usage"]]
    assert buckets == [("2026-01-15T23:00:00Z", 1), ("2026-01-16T00:00:00Z", 1)]
    response = await ask(own_server, start_time="2026-01-10T06:00:00Z", end_time="2026-03-01T00:00:00Z")
    assert response.json()["stride"] == {"days": 7, "hours": 0}
    assert [record["time_bucket"] for record in response.json()["usage"]] == ["2026-01-10T00:00:00Z"]


async def test_offsets_with_and_without_their_plus_sign(server: Hosted):
    await set_received_at(server, await receive(server, "a"), "2026-01-15T00:30:00Z")

    for plus in ("%2B", "+"):
        query = f"start_time=2026-01-15T02:00:00{plus}02:00&end_time=2026-01-15T03:00:00{plus}02:00"
        response = await server.client.get(f"{PATH}?{query}&workspace_ids={server.actor.workspace_id}")
        assert [record["traces"] for record in response.json()["usage"]] == [1]


async def test_a_trace_counts_at_its_first_receipt(server: Hosted):
    old = {"id": str(uuid4()), "name": "r", "start_time": "2020-06-01T00:00:00Z", "session_name": "a"}
    await server.client.post("/runs", json=old)
    await server.client.patch(f"/runs/{old['id']}", json={"end_time": "2020-06-01T00:00:01Z", "session_name": "b"})
    assert [record["traces"] for record in await server.usage("project", end_time="2021-01-01T00:00:00Z")] == []
    assert [record["dimensions"]["project_name"] for record in await server.usage("project")] == ["a"]


async def test_a_deleted_project_stays_on_the_bill(own_server: Hosted):
    await receive(own_server, "gone")
    await own_server.db.pool.execute("update projects set deleted_at = now()")
    assert [record["dimensions"]["project_name"] for record in await own_server.usage("project")] == ["gone"]


async def test_workspaces_without_access_are_left_out(own_server: Hosted):
    other = await own_server.new_workspace("Other")
    await receive(own_server, "a", 1)
    await receive(own_server, "b", 2, await own_server.new_key(workspace_id=other))
    ids = [str(other), str(own_server.actor.workspace_id), str(uuid4())]

    async def counted(key: str) -> list[tuple[str, int]]:
        question = {"start_time": "2020-01-01", "end_time": "2100-01-01", "workspace_ids": ids}
        response = await own_server.client.get(PATH, params=question, headers={"x-api-key": key})
        return sorted((record["dimensions"]["workspace_name"], record["traces"]) for record in response.json()["usage"])

    assert await counted(own_server.key) == [("Default", 1), ("Other", 2)], "an admin of the organization"
    assert await counted(await own_server.new_key("organization:read")) == [("Default", 1)]
    assert await counted(await own_server.new_key("organization:read", workspace_id=other)) == [("Other", 2)]


@pytest.mark.parametrize(
    ("params", "status", "where"),
    [
        ({"start_time": None}, 422, "start_time"),
        ({"end_time": None}, 422, "end_time"),
        ({"workspace_ids": None}, 422, "workspace_ids"),
        ({"workspace_ids": ""}, 422, "workspace_ids"),
        ({"workspace_ids": "x"}, 422, "workspace_ids"),
        ({"group_by": "colour"}, 422, "group_by"),
        ({"start_time": "soon"}, 422, "start_time"),
        ({"end_time": "2026-01-15T00:00:00Z"}, 400, "end_time must be after start_time"),
        ({"end_time": "2026-01-14T00:00:00Z"}, 400, "end_time must be after start_time"),
    ],
)
async def test_invalid_usage_queries_are_refused(server: Hosted, params: dict[str, Any], status: int, where: str):
    good = {"start_time": "2026-01-15T00:00:00Z", "end_time": "2026-01-16T00:00:00Z"}
    response = await ask(server, **{**good, **params})
    assert response.status_code == status
    assert where in response.text


async def test_usage_needs_the_permission(server: Hosted):
    key = {"x-api-key": await server.new_key("runs:read")}
    params = {"start_time": "2026-01-15", "end_time": "2026-01-16", "workspace_ids": str(server.actor.workspace_id)}
    assert (await server.client.get(PATH, params=params, headers=key)).status_code == 403
    key = {"x-api-key": await server.new_key("organization:read")}
    assert (await server.client.get(PATH, params=params, headers=key)).status_code == 200


# The CSV export

COLUMNS = (
    "Time Bucket Start,Time Bucket End,Workspace ID,Workspace Name,Project ID,Project Name,"
    "User ID,User Email,API Key Short Key,Traces"
)


async def export(server: Hosted, **params: Any) -> Any:
    query = {
        "start_time": "2026-01-01T00:00:00Z",
        "end_time": "2026-02-01T00:00:00Z",
        "workspace_ids": str(server.actor.workspace_id),
        **params,
    }

    return await server.client.get(f"{PATH}/export", params=query)


async def test_all_columns_are_exported_and_those_of_the_grouping_filled(own_server: Hosted):
    await set_received_at(own_server, await receive(own_server, "a", 2), "2026-01-15T10:00:00Z")
    actor = own_server.actor
    span = "2026-01-15T00:00:00Z,2026-01-16T00:00:00Z"
    project = await own_server.db.pool.fetchval("select id from projects where name = 'a'")

    lines = {
        "workspace": f"{span},{actor.workspace_id},Default,,,,,,2",
        "project": f"{span},,,{project},a,,,,2",
        "user": f"{span},,,,,{actor.user_id},{actor.user_email},,2",
        "api_key": f"{span},,,,,,,{actor.short_key},2",
    }

    for group_by, line in lines.items():
        response = await export(own_server, group_by=group_by)
        assert response.headers["content-type"] == "text/csv; charset=utf-8"
        assert f'filename="usage-by-{group_by}-20260101-20260201.csv"' in response.headers["content-disposition"]
        assert response.text == f"{COLUMNS}\r\n{line}\r\n"


async def test_lines_are_sorted_by_name_and_then_by_time(server: Hosted):
    # Neither the order of the projects' ids nor that of the receipts is the order of the names.
    for project in ("b", "c", "a"):
        await set_received_at(server, await receive(server, project), "2026-01-09T00:00:00+00:00")
        await set_received_at(server, await receive(server, project), "2026-01-08T00:00:00+00:00")

    rows = list(csv.DictReader((await export(server, group_by="project")).text.splitlines()))
    lines = [(row["Project Name"], row["Time Bucket Start"][:10]) for row in rows]
    assert lines == [(project, day) for project in ("a", "b", "c") for day in ("2026-01-08", "2026-01-09")]


async def test_an_empty_export_has_its_header(server: Hosted):
    assert (await export(server)).text == f"{COLUMNS}\r\n"


async def test_a_name_is_never_a_formula_nor_breaks_its_line(server: Hosted):
    names = ["=1+1", "+1", "-1", "@sum", "a,b", 'say "x"', "plain"]
    for name in names:
        await set_received_at(server, await receive(server, name), "2026-01-15T10:00:00Z")

    rows = list(csv.DictReader((await export(server, group_by="project")).text.splitlines()))
    expected = {f"'{name}" if name[0] in "=+-@" else name for name in names}
    assert {row["Project Name"] for row in rows} == expected


async def test_a_large_export_is_streamed(own_server: Hosted):
    await receive(own_server, "a")
    await own_server.db.pool.execute(
        "insert into projects (id, workspace_id, name) "
        "select gen_random_uuid(), $1, 'p' || n from generate_series(1, 3000) n",
        own_server.actor.workspace_id,
    )

    columns = [
        record["column_name"]
        for record in await own_server.db.pool.fetch(
            "select column_name from information_schema.columns where table_name = 'traces' and table_schema = 'public'"
        )
    ]

    kept = [name for name in columns if name not in {"trace_id", "project_id"}]
    await own_server.db.pool.execute(
        f"insert into traces (trace_id, project_id, {', '.join(kept)}) "
        f"select gen_random_uuid(), p.id, {', '.join('t.' + name for name in kept)} from traces t, projects p"
    )

    pieces = 0
    query = {"start_time": "2020-01-01", "end_time": "2100-01-01", "workspace_ids": str(own_server.actor.workspace_id)}
    async with own_server.client.stream("GET", f"{PATH}/export", params={**query, "group_by": "project"}) as response:
        text = "".join([piece async for piece in response.aiter_text() if (pieces := pieces + 1)])

    assert len(text.splitlines()) == 3002
    assert pieces > 1
    await check_a_slow_reader(own_server)


async def check_a_slow_reader(server: Hosted) -> None:
    """Check that an export holds no connection while it is read, and that all its lines are of one moment."""
    query = UsageQuery(
        start_time="2020-01-01",
        end_time="2100-01-01",
        workspace_ids=[server.actor.workspace_id],
        group_by=GroupBy.PROJECT,
    )

    within = read_range(query.start_time, query.end_time)
    pieces = export_usage(server.db, query, within, by=server.actor)
    text = await anext(pieces)
    assert len(text.splitlines()) < 3000
    assert await server.open_transactions() == 0
    await server.db.pool.execute("delete from traces")
    text += "".join([piece async for piece in pieces])
    assert len(text.splitlines()) == 3002


async def test_an_export_that_is_too_large_is_refused(server: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_CHUNK_BYTES", 10)
    monkeypatch.setattr(spool, "MAX_BYTES_OF_ONE", 10)
    await receive(server, "a")
    response = await export(server, start_time="2020-01-01", end_time="2100-01-01", group_by="project")
    assert response.status_code == 413
    assert response.json() == {"detail": spool.DownloadTooLarge.__doc__}


async def test_the_export_refuses_the_same_queries(server: Hosted):
    response = await export(server, end_time="2026-01-01T00:00:00Z")
    assert (response.status_code, response.json()) == (400, {"detail": "end_time must be after start_time"})
    response = await export(server, group_by="colour")
    assert response.status_code == 422
    key = {"x-api-key": await server.new_key("runs:read")}
    response = await server.client.get(f"{PATH}/export", headers=key)
    assert response.status_code == 403
