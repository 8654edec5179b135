"""Queries of runs by their fields, in pages, and shared runs: over HTTP and with the stock client."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
import pytest_asyncio
from langsmith import Client

from tests.api.hosted import Hosted, open_hosted

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT, MODEL, TOOL, FAILED, OPEN = (UUID(int=n) for n in range(1, 6))


def run(run_id: UUID, name: str, at: int, lasts: float | None, **fields: Any) -> dict[str, Any]:
    start = f"2026-11-21T02:00:{at:02}.000000"
    stamp = f"20260000T0000{at:02}000000Z{run_id}"
    ends = None if lasts is None else f"2026-11-21T02:00:{at + lasts:09.6f}"
    above = f"20260000T000010000000Z{ROOT}."
    place = {"dotted_order": stamp, "trace_id": str(run_id)}

    if "parent_run_id" in fields:
        place = {"dotted_order": above + stamp, "trace_id": str(ROOT)}

    named = {"id": str(run_id), "name": name, "run_type": "chain", "session_name": "p", "inputs": {"n": at}}
    return {**named, "start_time": start, "end_time": ends, **place, **fields}


RUNS = [
    run(ROOT, "root", 10, 9, tags=["a", "b"], extra={"metadata": {"k": "v", "other": "w", "n": 3}}),
    run(
        MODEL,
        "model",
        11,
        6,
        run_type="llm",
        parent_run_id=str(ROOT),
        tags=["b"],
        extra={"metadata": {"usage_metadata": {"input_tokens": 7, "output_tokens": 5, "total_cost": 0.25}}},
        events=[{"name": "new_token", "time": "2026-11-21T02:00:12Z"}],
        outputs={"text": "Grüße"},
    ),
    run(
        TOOL, "tool", 13, 0.5, run_type="tool", parent_run_id=str(ROOT), outputs={"usage_metadata": {"total_tokens": 2}}
    ),
    run(FAILED, "failed", 20, 1, error="ValueError: no\ngood"),
    run(OPEN, "open", 30, None, extra={"metadata": {"k": "w", "other": "v", "bad": "\ud800"}}),
]
FILTERS = {
    'eq(run_type, "llm")': {"model"},
    "neq(run_type, 'chain')": {"model", "tool"},
    'gt(latency, "5s")': {"root", "model"},
    'and(gt(latency, 0.4), lt(latency, "1500ms"))': {"tool", "failed"},
    "gte(total_tokens, 12)": {"model"},
    "eq(total_tokens, 2)": set(),
    'has(tags, "b")': {"root", "model"},
    'and(has(tags, "b"), not(has(tags, "a")))': {"model"},
    'in(tags, ["a", "z"])': {"root"},
    "exists(error)": {"failed"},
    "neq(error, null)": {"failed"},
    "eq(error, null)": {"root", "model", "tool", "open"},
    'search(error, "NO\\ngood")': {"failed"},
    'search("grüsse")': set(),
    'search("grüße")': {"model"},
    'eq(status, "pending")': {"open"},
    'or(eq(name, "open"), eq(name, "tool"))': {"open", "tool"},
    'in(name, ["open", "tool", "x"])': {"open", "tool"},
    'gt(start_time, "2026-11-21T02:00:15Z")': {"failed", "open"},
    'lte(end_time, "2026-11-21T02:00:13.5+00:00")': {"tool"},
    "exists(end_time)": {"root", "model", "tool", "failed"},
    f'eq(id, "{OPEN}")': {"open"},
    "eq(is_root, true)": {"root", "failed", "open"},
    "eq(execution_order, 1)": {"root", "failed", "open"},
    "eq(execution_order, 3)": {"tool"},
    'eq(metadata_key, "k")': {"root", "open"},
    'and(eq(metadata_key, "k"), eq(metadata_value, "v"))': {"root"},
    'and(eq(metadata_key, "k"), eq(metadata_value, "w"))': {"open"},
    'and(eq(metadata_key, "k"), eq(metadata_value, "v"), eq(metadata_key, "n"), eq(metadata_value, 3))': {"root"},
    'has(metadata, \'{"k": "v"}\')': {"root"},
    'eq(feedback_key, "stars")': {"root", "tool"},
    'and(eq(feedback_key, "stars"), gt(feedback_score, 0.5))': {"root"},
    'and(eq(feedback_key, "stars"), gt(feedback_score, 0.1), lt(feedback_score, 0.5))': {"tool"},
    'and(eq(run_type, "tool"), or(eq(feedback_key, "x"), lte(feedback_score, 0.2)))': {"tool"},
}
# Filters, each with the character that its error names: None for an error without one, 0 for no error.
BROKEN = {
    "": None,
    "eq(name": 8,
    "name": 1,
    "eq(name, )": 10,
    'eq(name, "x"))': 14,
    'foo(name, "x")': 1,
    'eq(nothing, "x")': 4,
    "eq(name)": 1,
    'eq(name, "x", null)': 1,
    'gt(latency, "soon")': 13,
    "eq(start_time, 5)": 16,
    "in(name, 5)": 10,
    "has(name, 'x')": 5,
    "has(metadata, '[1]')": 15,
    "eq(name, x)": 10,
    'search(latency, "x")': 1,
    "not(" * 30: None,
    "and(" + "exists(error)," * 300: None,
    'eq(name, "x': 10,
    "eq(name, [1])": 10,
    'eq(name, "\'; drop table runs; --")': 0,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        assert (await running.client.post("/runs/batch", json={"post": RUNS[:4]})).status_code == 202
        # A half of a surrogate pair, which no jsonb holds.
        response = await running.client.post("/runs", content=json.dumps(RUNS[4]))
        assert response.status_code == 202, response.text

        for run_id, score in ((ROOT, 1), (TOOL, 0.2)):
            await running.client.post("/feedback", json={"run_id": str(run_id), "key": "stars", "score": score})

        yield running


async def query_names(server: Hosted, **body: Any) -> list[str]:
    response = await server.client.post("/runs/query", json=body)
    assert response.status_code == 200, response.text
    return [item["name"] for item in response.json()["runs"]]


async def test_filters_find_matching_runs(server: Hosted):
    received = {text: set(await query_names(server, filter=text)) for text in FILTERS}
    assert received == FILTERS


async def test_malformed_filters_name_the_character(server: Hosted):
    for text, place in BROKEN.items():
        response = await server.client.post("/runs/query", json={"filter": text})
        if not text or place == 0:  # an empty filter selects all runs
            assert response.status_code == 200, text
            continue

        assert response.status_code == 400, text
        where = f"Invalid filter at character {'' if place is None else f'{place}:'}"
        assert response.json()["detail"].startswith(where), (text, response.json())


async def test_no_filter_breaks_the_server(server: Hosted):
    dice = random.Random(11)
    bits = [
        *"()[],\"'\\ ",
        "and(",
        "eq(",
        "not(",
        "in(",
        "has(",
        "tags",
        "name",
        "latency",
        "metadata_key",
        "5",
        "-1.5e9",
        "null",
        "feedback_score",
        "true",
        "\x00",
        "é",
        "start_time",
        '"2026"',
        "9" * 40,
    ]

    for _ in range(150):
        text = "".join(dice.choice(bits) for _ in range(dice.randrange(1, 14)))
        response = await server.client.post("/runs/query", json={"filter": text})
        assert response.status_code in {200, 400, 422}, (text, response.text)


async def test_query_fields_filter_runs(server: Hosted):
    project = (await server.client.get(f"/runs/{ROOT}")).json()["session_id"]
    everything = ["open", "failed", "tool", "model", "root"]
    assert await query_names(server, session=[project], start_time=None) == everything
    assert await query_names(server, session=[project, str(uuid4())], order="asc") == everything[::-1]
    assert await query_names(server, session=[str(uuid4())]) == []
    assert await query_names(server, trace=str(ROOT)) == ["tool", "model", "root"]
    assert await query_names(server, parent_run=str(ROOT)) == ["tool", "model"]

    assert await query_names(server, id=[str(OPEN), str(TOOL)]) == ["open", "tool"]
    assert await query_names(server, run_type="llm") == ["model"]
    assert (
        await query_names(server, is_root=True)
        == await query_names(server, execution_order=1)
        == ["open", "failed", "root"]
    )
    assert await query_names(server, error=True) == ["failed"]
    assert (
        await query_names(server, start_time="2026-11-21T02:00:11", end_time="2026-11-21T02:00:20Z") == everything[1:4]
    )
    assert await query_names(server, query="GRÜSSE") == []
    assert await query_names(server, query="valueerror") == ["failed"]

    assert await query_names(server, trace_filter='has(tags, "a")', run_type="llm") == ["model"]
    assert await query_names(server, tree_filter='eq(name, "tool")', is_root=True) == ["root"]
    assert await query_names(server, reference_example=[str(uuid4())]) == []


async def test_invalid_queries_are_refused(server: Hosted):
    over = await server.client.post("/runs/query", json={"limit": 101})
    assert (over.status_code, over.json()) == (400, {"detail": "Limit exceeds maximum allowed value of 100"})
    for cursor in ("x", "e30=", "WzEsMiwzXQ=="):
        assert (await server.client.post("/runs/query", json={"cursor": cursor})).status_code == 400

    odd = await server.client.post("/runs/query", json={"select": ["id", "colour"]})
    assert (odd.status_code, odd.json()["detail"][0]["loc"]) == (422, ["body", "select"])


async def test_stats_cover_the_matching_runs(server: Hosted):
    stats = (await server.client.post("/runs/stats", json={})).json()
    assert (stats["run_count"], stats["error_rate"], stats["streaming_rate"]) == (5, 0.2, 0.2)
    assert (stats["prompt_tokens"], stats["total_tokens"], float(stats["total_cost"])) == (7, 12, 0.25)
    assert (stats["latency_p50"], stats["first_token_p99"]) == (3.5, 1)
    assert stats["feedback_stats"] == {"stars": {"n": 2, "avg": 0.6, "values": {}}}
    none = (await server.client.post("/runs/stats", json={"filter": 'eq(name, "none")'})).json()
    assert (none["run_count"], none["latency_p50"], none["feedback_stats"]) == (0, None, {})


async def test_stats_are_grouped_and_selected(server: Hosted):
    async def grouped(**body: Any) -> dict[str, int]:
        response = await server.client.post("/runs/stats", json=body)
        assert response.status_code == 200, response.text
        return {group: stats["run_count"] for group, stats in response.json().items()}

    assert await grouped(group_by={"attribute": "run_type"}) == {"chain": 3, "llm": 1, "tool": 1}
    assert list(await grouped(group_by={"attribute": "name", "max_groups": 2})) == ["failed", "model"]
    assert await grouped(group_by={"attribute": "tag"}, groups=["b"]) == {"b": 2}
    assert await grouped(group_by={"attribute": "metadata", "path": "k"}) == {"v": 1, "w": 1}
    assert await grouped(group_by={"attribute": "tag"}, filter='eq(name, "none")') == {}
    body = {"group_by": {"attribute": "name"}, "groups": ["root"], "select": ["feedback_stats", "latency_avg"]}
    (root,) = (await server.client.post("/runs/stats", json=body)).json().values()
    assert root == {"feedback_stats": {"stars": {"n": 1, "avg": 1.0, "values": {}}}, "latency_avg": 9.0}

    for wrong, field in (
        ({"group_by": {"attribute": "metadata"}}, ["body", "group_by", "path"]),
        ({"group_by": {"attribute": "colour"}}, ["body", "group_by", "attribute"]),
        ({"groups": ["a"]}, ["body", "groups"]),
        ({"select": ["colour"]}, ["body", "select"]),
    ):
        response = await server.client.post("/runs/stats", json=wrong)
        assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, field)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_cursors_page_forwards_and_backwards(server: Hosted, order: str):
    async def page(cursor: str | None) -> tuple[list[str], dict[str, str | None]]:
        body = {"limit": 2, "order": order, "cursor": cursor, "select": ["name"]}
        response = (await server.client.post("/runs/query", json=body)).json()
        return [item["name"] for item in response["runs"]], response["cursors"]

    first, one = await page(None)
    second, two = await page(one["next"])
    third, three = await page(two["next"])
    expected = await query_names(server, order=order)
    assert (first, second, third) == (expected[:2], expected[2:4], expected[4:])
    assert (one["prev"], three["next"]) == (None, None)
    back, four = await page(three["prev"])
    assert back == second

    front, five = await page(four["prev"])
    assert (front, five["prev"]) == (first, None)
    assert (await page(four["next"]))[0] == third
    body = {"limit": 2, "skip_pagination": True}
    response = await server.client.post("/runs/query", json=body)
    assert response.json()["cursors"] == {"next": None, "prev": None}


@pytest.mark.filterwarnings("ignore:.*is deprecated")
async def test_the_sdk_lists_runs(server: Hosted):
    client = Client(api_url=server.url, api_key=server.key)

    def work() -> dict[str, Any]:
        return {item.name: item for item in client.list_runs(project_name="p", filter="not(eq(name, 'open'))")}

    runs = await asyncio.to_thread(work)
    model = runs["model"]
    assert set(runs) == {"root", "model", "tool", "failed"}
    assert (model.prompt_tokens, model.completion_tokens, model.total_tokens) == (7, 5, 12)
    assert (str(model.total_cost), model.first_token_time.second, model.parent_run_ids) == ("0.25", 12, [ROOT])
    assert runs["root"].feedback_stats["stars"] == {"n": 1, "avg": 1}
    assert (runs["failed"].status, runs["root"].inputs) == ("error", {"n": 10})


@pytest.mark.filterwarnings("ignore:.*is deprecated")
async def test_a_share_link_shows_a_run_and_its_descendants(server: Hosted):
    client = Client(api_url=server.url, api_key=server.key)

    def share() -> tuple[str, Any]:
        assert client.read_run_shared_link(MODEL) is None
        link = client.share_run(MODEL)
        assert client.share_run(MODEL) == link == client.read_run_shared_link(MODEL)
        token = link.split("/")[-2]
        return token, client.read_shared_run(token)

    token, shown = await asyncio.to_thread(share)
    assert (shown.id, shown.outputs) == (MODEL, {"text": "Grüße"})
    assert shown.url.endswith(f"/public/{token}/r")

    async with httpx2.AsyncClient(base_url=server.url) as nobody:
        assert (await nobody.get(f"/public/{token}/run/{MODEL}")).status_code == 200

        # Nobody learns the id of the workspace from a link.
        for method, path, body in (
            ("GET", "run", None),
            ("GET", f"run/{MODEL}", None),
            ("POST", "runs/query", {}),
            ("POST", "runs/query", {"select": ["app_path"]}),
        ):
            seen = await nobody.request(method, f"/public/{token}/{path}", json=body)
            assert (seen.status_code, str(server.actor.workspace_id) in seen.text) == (200, False), path
            run = seen.json()["runs"][0] if method == "POST" else seen.json()
            assert run["app_path"] == f"/public/{token}/r", path

        assert (await nobody.get(f"/public/{token}/run/{ROOT}")).status_code == 404
        values = (await nobody.get(f"/public/{token}/run/{MODEL}/values?chars=5")).json()["values"]
        assert {"name": "outputs", "bytes": 18, "text": '{"tex', "is_whole": False} in values
        whole = await nobody.get(f"/public/{token}/run/{MODEL}/values/outputs")
        assert (whole.json(), whole.headers["content-disposition"][:10]) == ({"text": "Grüße"}, "attachment")
        assert (await nobody.get(f"/public/{token}/run/{MODEL}/values/other")).status_code == 404

        for path in (f"run/{ROOT}/values", f"run/{ROOT}/values/inputs", f"run/{TOOL}/values/inputs"):
            assert (await nobody.get(f"/public/{token}/{path}")).status_code == 404, path

        for selects in (["ID", "NAME"], ["ID", "INPUTS"]):
            found = await nobody.post(f"/v2/public/{token}/runs/query", json={"selects": selects})
            assert [run["id"] for run in found.json()["items"]] == [str(MODEL)]

        for field in ("trace_tokens", "trace_cost", "execution_order"):
            body = {"filter": f"or(eq(name, 'x'), gt({field}, 0))"}
            told = await nobody.post(f"/public/{token}/runs/query", json=body)
            assert (told.status_code, f"no field {field}" in told.text) == (400, True)

        for body in ({"trace_filter": "exists(name)"}, {"tree_filter": "exists(name)"}, {"execution_order": 2}):
            told = await nobody.post(f"/public/{token}/runs/query", json=body)
            assert (told.status_code, "refers to runs that are not shared" in told.text) == (422, True), body

        taken = await server.client.put(f"/runs/{TOOL}/share", json={"share_token": token})
        assert taken.status_code == 409
        await asyncio.to_thread(client.unshare_run, MODEL)
        assert (await nobody.get(f"/public/{token}/run")).status_code == 404
        assert (await nobody.get(f"/public/{token}/run/{MODEL}/values")).status_code == 404
        assert (await nobody.get(f"/public/{token}/run/{MODEL}/values/outputs")).status_code == 404

    assert (await server.client.put(f"/runs/{uuid4()}/share", json={})).status_code == 404


async def test_another_workspace_cannot_find_or_share_runs(server: Hosted):
    headers = {"x-api-key": await server.new_key(workspace_id=await server.new_workspace("Others"))}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as other:
        for body in ({}, {"trace": str(ROOT)}, {"id": [str(ROOT)]}, {"filter": "or(exists(name), not(exists(name)))"}):
            assert (await other.post("/runs/query", json=body)).json()["runs"] == []
            assert (await other.post("/runs/stats", json=body)).json()["run_count"] == 0

        assert (await other.put(f"/runs/{ROOT}/share", json={})).status_code == 404
        run = {"id": str(ROOT), "name": "theirs", "run_type": "chain", "session_name": "p"}
        assert (await other.post("/runs", json=run)).status_code == 202
        tree = {"tree_filter": 'eq(name, "root")'}
        assert (await other.post("/runs/query", json=tree)).json()["runs"] == []


async def test_runs_of_another_workspace_with_the_same_ids_stay_apart(server: Hosted):
    async def attach(client: httpx2.AsyncClient, content: bytes) -> None:
        file = {f"attachment.{ROOT}.note": ("note", content, "text/plain")}
        assert (await client.post("/runs/multipart", files=file)).status_code == 202

    async def download(client: httpx2.AsyncClient) -> bytes:
        links = (await client.get(f"/runs/{ROOT}")).json()["s3_urls"]
        return (await client.get(links["attachment.note"]["presigned_url"])).content

    await attach(server.client, b"theirs")
    token = (await server.client.put(f"/runs/{ROOT}/share", json={})).json()["share_token"]

    headers = {"x-api-key": await server.new_key(workspace_id=await server.new_workspace("Twins"))}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as other:
        mine = {**RUNS[0], "name": "mine", "extra": {"metadata": {"thread_id": "t"}}}
        assert (await other.post("/runs", json=mine)).status_code == 202
        (project,) = (await other.get("/sessions")).json()

        found = (await other.get(f"/runs/{ROOT}")).json()
        assert (found["total_tokens"], found["total_cost"]) == (0, None)
        assert (found["feedback_stats"], found["s3_urls"]) == (None, None)
        assert (await other.post("/runs/stats", json={})).json()["feedback_stats"] == {}

        for name in ("filter", "trace_filter", "tree_filter"):
            for text in ('eq(feedback_key, "stars")', 'eq(name, "root")'):
                assert (await other.post("/runs/query", json={name: text})).json()["runs"] == [], (name, text)

        since = {"min_start_time": RUNS[0]["start_time"] + "Z"}
        selects = ["SHARE_URL", "TOTAL_TOKENS"]
        query = {"project_ids": [project["id"]], "selects": selects, "include_subtree_usage": True, **since}
        listed = (await other.post("/v2/runs/query", json=query)).json()["items"]
        assert listed == [{"share_url": None, "total_tokens": 0}]
        (thread,) = (await other.post("/v2/threads/query", json={"project_id": project["id"], **since})).json()["items"]
        assert (thread["thread_id"], thread["total_tokens"], thread["total_cost"]) == ("t", 0, None)

        await attach(other, b"mine")
        assert [await download(client) for client in (other, server.client)] == [b"mine", b"theirs"]
        await other.post("/feedback", json={"run_id": str(ROOT), "key": "mine"})
        for selects in (["NAME"], ["NAME", "INPUTS"]):
            shown = await other.post(f"/v2/public/{token}/runs/query", json={"selects": selects})
            assert [item["name"] for item in shown.json()["items"]] == ["root", "model", "tool"]

        said = (await other.get(f"/public/{token}/feedbacks", params={"run": str(ROOT)})).json()
        assert [item["key"] for item in said] == ["stars"]

        gone = {"session_id": project["id"], "trace_ids": [str(ROOT)]}
        assert (await other.post("/runs/delete", json=gone)).status_code == 202
        assert (await other.post("/runs", json=mine)).status_code == 202
        assert (await other.delete(f"/sessions/{project['id']}")).status_code == 202

    kept = (await server.client.get(f"/runs/{ROOT}")).json()
    assert (kept["name"], list(kept["feedback_stats"])) == ("root", ["stars"])
    assert await download(server.client) == b"theirs"
    assert (await server.client.get(f"/runs/{ROOT}/share")).json() is not None
    await server.client.delete(f"/runs/{ROOT}/share")
