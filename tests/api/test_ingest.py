"""Ingest and its reads over HTTP: encodings, repetition, refusals."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
import pytest_asyncio
import zstandard

from tests.api.hosted import MAX_BODY_BYTES, Hosted, in_new_workspace

RUN = UUID(int=1)
BOUNDARY = "----LangSmithFormBoundaryjwr1g8tq44i"
MULTIPART = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def server(shared_hosted: Hosted) -> AsyncIterator[Hosted]:
    async with in_new_workspace(shared_hosted) as running:
        yield running


def parts(**named: Any) -> bytes:
    """A body as the JavaScript SDK writes it; `post__inputs` becomes the part `post.<id>.inputs`."""
    chunks = []
    for name, value in named.items():
        kind, _, field = name.partition("__")
        data = json.dumps(value, default=str)
        chunks.append(
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{kind}.{RUN}{"." + field if field else ""}"\r\n'
            f"Content-Type: application/json; length={len(data)}\r\n\r\n{data}\r\n"
        )

    return ("".join(chunks) + f"--{BOUNDARY}--\r\n").encode()


def run(run_id: UUID = RUN, **fields: Any) -> dict[str, Any]:
    return {"id": str(run_id), "name": "r", "run_type": "chain", "session_name": "p", **fields}


JS = parts(
    post=run(start_time="2026-11-21T02:08:45.036001Z", end_time=1795226925093, child_runs=[]),
    post__inputs={"input": 3},
    post__outputs={},
    patch=run(end_time=1795226925100),
    patch__outputs={"outputs": 8},
)


async def read_run(server: Hosted, run_id: UUID = RUN) -> Any:
    response = await server.client.get(f"/runs/{run_id}")
    assert response.status_code == 200, response.text
    return response.json()


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), 100):
        yield body[at : at + 100]


@pytest.mark.parametrize(
    ("encoding", "body"), [("", JS), ("gzip", gzip.compress(JS, mtime=0)), ("zstd", zstandard.compress(JS))]
)
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_multipart_in_every_encoding(server: Hosted, encoding: str, body: bytes, framing: str):
    headers = {**MULTIPART, **({"content-encoding": encoding} if encoding else {})}
    content = chunks(body) if framing == "chunked" else body
    response = await server.client.post("/runs/multipart", content=content, headers=headers)
    assert (response.status_code, response.json()) == (202, {"message": "Accepted"})
    found = await read_run(server)
    assert (found["inputs"], found["outputs"], found["status"]) == ({"input": 3}, {"outputs": 8}, "success")
    assert found["end_time"] == "2026-11-21T02:08:45.1Z" or found["end_time"].startswith("2026-11-21T02:08:45.1")


async def test_a_repeated_batch_changes_nothing(server: Hosted):
    await server.client.post("/runs/multipart", content=JS, headers=MULTIPART)
    first = await read_run(server)
    for body in (parts(post=run(), post__outputs={}), JS):
        assert (await server.client.post("/runs/multipart", content=body, headers=MULTIPART)).status_code == 202

    assert await read_run(server) == first
    assert [record["traces"] for record in await server.usage("workspace")] == [1]


async def test_concurrent_batches_are_stored(server: Hosted):
    ids = [uuid4() for _ in range(40)]

    async def deliver(number: int) -> None:
        order = ids[number * 5 :] + ids[: number * 5]
        response = await server.client.post("/runs/batch", json={"post": [run(i) for i in order]})
        assert response.status_code == 202

    await asyncio.gather(*(deliver(number) for number in range(8)))
    assert [record["traces"] for record in await server.usage("project")] == [40]


async def test_a_bomb_is_refused(server: Hosted):
    bomb = zstandard.compress(bytes(300 * 1024 * 1024))
    headers = {**MULTIPART, "content-encoding": "zstd"}
    response = await server.client.post("/runs/multipart", content=bomb, headers=headers)
    assert (response.status_code, list(response.json())) == (413, ["detail"])


async def test_a_body_over_the_limit_is_refused(server: Hosted):
    body = b'{"post": "' + b"x" * (MAX_BODY_BYTES + 1) + b'"}'
    response = await server.client.post("/runs/batch", content=body)
    assert response.status_code == 413
    assert "HTTP_MAX_REQUEST_BODY_BYTES" in response.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/runs/multipart", JS, {}, 422),
        ("/runs/multipart", JS[:-30], MULTIPART, 422),
        ("/runs/multipart", zstandard.compress(JS)[:-20], {**MULTIPART, "content-encoding": "zstd"}, 422),
        ("/runs/multipart", JS, {**MULTIPART, "content-encoding": "zstd"}, 400),
        ("/runs/multipart", JS, {**MULTIPART, "content-encoding": "br"}, 415),
        ("/runs/batch", b'{"post": [{"id": "x"}]}', {}, 422),
        ("/runs", b'{"id": "00000000-0000-0000-0000-000000000001"}', {}, 422),
        ("/runs", b"not json", {}, 422),
    ],
)
async def test_broken_bodies_are_refused(server: Hosted, path: str, body: bytes, headers: dict[str, str], status: int):
    response = await server.client.post(path, content=body, headers=headers)
    assert (response.status_code, list(response.json())) == (status, ["detail"])
    count = "select count(*) from runs where workspace_id = $1"
    assert await server.db.pool.fetchval(count, server.actor.workspace_id) == 0


async def test_a_wrong_key_is_refused_except_at_info(server: Hosted):
    async with httpx2.AsyncClient(base_url=server.url, headers={"x-api-key": "lsv2_pt_wrong"}) as stranger:
        assert (await stranger.get("/info")).json()["version"] == "0.16.40"

        for method, path in [
            ("POST", "/runs"),
            ("POST", "/runs/batch"),
            ("POST", "/runs/multipart"),
            ("PATCH", f"/runs/{RUN}"),
            ("GET", f"/runs/{RUN}"),
            ("GET", "/sessions"),
            ("GET", "/orgs/current/billing/granular-usage"),
        ]:
            assert (await stranger.request(method, path, content=b"{}")).status_code == 401


async def test_keys_are_limited_by_their_permissions(server: Hosted):
    key = {"x-api-key": await server.new_key("runs:create")}
    assert (await server.client.post("/runs", json=run(), headers=key)).status_code == 202
    assert (await server.client.get(f"/runs/{RUN}", headers=key)).status_code == 403
    assert (await server.client.get("/sessions", headers=key)).status_code == 403


async def test_another_workspace_sees_nothing(server: Hosted):
    await server.client.post("/runs", json=run())
    key = {"x-api-key": await server.new_key(workspace_id=await server.new_workspace("Other"))}
    response = await server.client.get(f"/runs/{RUN}", headers=key)
    assert (response.status_code, response.json()) == (404, {"detail": "Run not found"})
    assert (await server.client.get("/sessions", headers=key)).json() == []


async def test_runs_can_exclude_serialized(server: Hosted):
    await server.client.post("/runs", json=run(serialized={"lc": 1}))
    assert (await read_run(server))["serialized"] == {"lc": 1}
    response = await server.client.get(f"/runs/{RUN}", params={"exclude_serialized": "true"})
    assert response.json()["serialized"] is None


async def test_projects_are_listed_and_filtered(server: Hosted):
    for name in ("alpha", "beta", "Alphabet", "100%"):
        await server.client.post("/runs", json=run(uuid4(), session_name=name))

    await server.client.post("/runs", json={**run(uuid4()), "session_name": None})

    async def names(**params: Any) -> list[str]:
        response = await server.client.get("/sessions", params=params)
        assert response.status_code == 200, response.text
        return [project["name"] for project in response.json()]

    assert await names() == ["default", "100%", "Alphabet", "beta", "alpha"]
    assert await names(name="alpha") == ["alpha"]
    assert await names(name_contains="ALPHA") == ["Alphabet", "alpha"]
    assert await names(name_contains="%") == ["100%"]
    assert await names(limit=2, offset=1) == ["100%", "Alphabet"]
    project = (await server.client.get("/sessions", params={"name": "beta"})).json()[0]
    assert project["tenant_id"] == str(server.actor.workspace_id)

    assert project["reference_dataset_id"] is None
    assert await names(id=project["id"]) == ["beta"]

    for bad in ({"limit": 101}, {"offset": -1}, {"facets": True}, {"id": "x"}):
        assert (await server.client.get("/sessions", params=bad)).status_code == 422
