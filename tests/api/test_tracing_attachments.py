"""Attachments: uploaded with the stock client, downloaded by links that expire."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from urllib.parse import parse_qs, urlparse
from uuid import UUID, uuid4

import httpx2
import pytest
import pytest_asyncio
from langsmith import Client

from portside.kernel.clock import now
from portside.tracing import attachments
from tests.api.hosted import Hosted, open_hosted

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:.*is deprecated"),
]
PAGE = b"<script>alert(1)</script>\r\n--\x00\xff"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        yield running


async def store_run(server: Hosted) -> UUID:
    """Store a run with two attachments, as the stock client does."""
    run_id = uuid4()

    def work() -> None:
        client = Client(api_url=server.url, api_key=server.key)
        files = {"page é": ("text/html", PAGE), "big": ("weird\u2028type", bytes(100_000))}
        order = f"20261121T020000000000Z{run_id}"

        client.create_run(
            "with files",
            {"a": 1},
            "chain",
            id=run_id,
            trace_id=run_id,
            dotted_order=order,
            project_name="files",
            start_time="2026-11-21T02:00:00Z",
            attachments=files,
        )

        client.flush()

    await asyncio.to_thread(work)
    return run_id


async def links(server: Hosted, run_id: UUID) -> dict[str, str]:
    urls = (await server.client.get(f"/runs/{run_id}")).json()["s3_urls"]
    return {name.removeprefix("attachment."): one["presigned_url"] for name, one in urls.items()}


async def test_the_sdk_reads_the_attachments_that_it_stored(server: Hosted):
    run_id = await store_run(server)

    def work() -> None:
        client = Client(api_url=server.url, api_key=server.key)
        for run in (client.read_run(run_id), *client.list_runs(project_name="files", id=[run_id])):
            kept = run.attachments or {}
            assert {name: one["reader"].read() for name, one in kept.items()} == {
                "page é": PAGE,
                "big": bytes(100_000),
            }

            assert kept["page é"]["mime_type"] == "text/html"

        token = client.share_run(run_id).split("/")[-2]
        assert client.read_shared_run(token).id == run_id

    await asyncio.to_thread(work)
    bare = await server.client.get(f"/runs/{run_id}", params={"exclude_s3_stored_attributes": True})
    assert bare.json()["s3_urls"] is None
    other = await server.client.post("/runs/query", json={"id": [str(run_id)], "select": ["inputs_s3_urls"]})
    assert other.json()["runs"][0]["inputs_s3_urls"] is None


async def test_a_download_link_needs_no_key_and_is_never_rendered(server: Hosted):
    found = await links(server, await store_run(server))
    async with httpx2.AsyncClient() as nobody:
        page = await nobody.get(found["page é"])
        assert (page.content, page.headers["content-type"].split(";")[0]) == (PAGE, "text/html")
        assert page.headers["content-disposition"] == "attachment; filename*=UTF-8''page%20%C3%A9"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "private, no-store"
        assert "sandbox" in page.headers["content-security-policy"]
        assert (await nobody.get(found["big"])).headers["content-type"] == "application/octet-stream"


async def test_changed_expired_and_dangling_links_are_refused(server: Hosted, monkeypatch):
    run_id = await store_run(server)
    (token,) = parse_qs(urlparse((await links(server, run_id))["big"]).query)["token"]
    middle = len(token) // 2

    flipped = token[:middle] + ("A" if token[middle] != "A" else "B") + token[middle + 1 :]
    for wrong in (flipped, token[:-8], "", "é", "AAAA", token[4:]):
        assert (await server.client.get("/public/download", params={"token": wrong})).status_code == 403, wrong

    made_at = now()
    for minutes, status in ((30, 200), (90, 403)):
        monkeypatch.setattr(attachments, "now", lambda minutes=minutes: made_at + timedelta(minutes=minutes))
        assert (await server.client.get("/public/download", params={"token": token})).status_code == status, minutes

    monkeypatch.undo()
    project = (await server.client.get(f"/runs/{run_id}")).json()["session_id"]
    await server.client.delete(f"/sessions/{project}")
    assert (await server.client.get("/public/download", params={"token": token})).status_code == 404
