"""The console in front of one agent: which requests it answers, and which the agent gets."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio
from starlette.responses import PlainTextResponse

from portside.console import site


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<head><title>Portside</title></head>")
    (tmp_path / "assets" / "index-abc.js").write_text("export {}")

    app = site.ServeConsole(PlainTextResponse("the agent"), '/mine"', tmp_path)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://agent") as opened:
        yield opened


async def test_pages_name_the_path_of_the_agent(client: httpx2.AsyncClient) -> None:
    response = await client.get("/console/agents/own/studio")
    assert '<meta name="portside-agent" content="/mine&quot;">' in response.text
    assert "connect-src 'self';" in response.headers["content-security-policy"]


async def test_files_are_served_and_missing_ones_not_found(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/console/assets/index-abc.js")).text == "export {}"
    assert (await client.get("/console/assets/index-old.js")).status_code == 404


@pytest.mark.parametrize("path", ["/studio", "/console"])
async def test_short_addresses_lead_to_the_console(client: httpx2.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert (response.status_code, response.headers["location"]) == (307, "/console/")


async def test_everything_else_is_the_agents(client: httpx2.AsyncClient) -> None:
    paths = ("/", "/ok", "/consoles", "/threads")
    for path in paths:
        assert (await client.get(path)).text == "the agent"

    assert (await client.post("/console/")).text == "the agent"
