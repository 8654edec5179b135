"""The rate limits of a whole platform: limited and unlimited requests, and changes by an operator."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from portside.kernel.clock import now
from portside.kernel.errors import UserMistake
from portside.kernel.http.server import Server, listen
from portside.limits import middleware, windows
from portside.limits.types import Limit, Region
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.settings import PlatformSettings

KEY = "lsv2_pt_0123456789abcdef_0123456789"


@pytest.fixture(autouse=True)
def _windows_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """No window of a limit ends during a test: its clock stands."""
    moment = now()
    monkeypatch.setattr(windows.Windows.__init__, "__defaults__", (lambda: moment,))


@asynccontextmanager
async def platform(folder: Path, database: str, **settings: Any) -> AsyncIterator[httpx2.AsyncClient]:
    async with open_platform(Home(folder), PlatformSettings(api_key=KEY, **settings), database) as app:
        stop = asyncio.Event()
        listening = listen("127.0.0.1", 0)
        server = Server(app.asgi, draining=app.draining, grace_s=1)
        await server.open([listening])

        serving = asyncio.create_task(server.serve_until(stop))
        base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            async with httpx2.AsyncClient(base_url=base, timeout=300, headers={"x-api-key": KEY}) as client:
                yield client
        finally:
            app.changes.close()
            stop.set()
            await serving


async def test_the_documented_limits_hold_under_every_prefix(platform_databases, tmp_path) -> None:
    async with platform(tmp_path, await platform_databases(), region=Region.EU) as client:
        headers_of_all = [(await client.get(f"{prefix}/workspaces")).headers for prefix in ("", "/api/v1", "/api")]
        assert [headers["x-ratelimit-remaining"] for headers in headers_of_all] == ["999", "998", "997"]
        missing = await client.get(f"/datasets/{uuid4()}")
        assert (missing.status_code, missing.headers["x-ratelimit-remaining"]) == (404, "996")
        response = await client.get("/ok", headers={"x-api-key": ""})
        assert "x-ratelimit-limit" not in response.headers
        response = await client.get("/api-host/v2/deployments")
        assert (response.status_code, "x-ratelimit-limit" in response.headers) == (200, False)

        # A page of the console is not limited, and the routes beside it are.
        response = await client.get("/public/download", headers={"x-api-key": ""})
        assert response.headers["x-ratelimit-limit"] == "5000"
        response = await client.post("/runs/stats")
        assert response.headers["x-ratelimit-limit"] == "20"
        assert (await client.get("/info")).json()["region"] == "eu"


async def test_an_operators_table_replaces_the_documented_one(platform_databases, tmp_path) -> None:
    table = tmp_path / "limits.txt"
    table.write_text("/workspaces | x-api-key | 2/600 | 9/600 | Few\n/auth | x-api-key | off | off | None\n")
    async with platform(tmp_path, await platform_databases(), rate_limits_file=str(table)) as client:
        assert [(await client.get("/workspaces")).status_code for _ in range(3)] == [200, 200, 429]
        assert (await client.get("/api/v1/workspaces")).status_code == 429
        assert {(await client.get("/auth")).status_code for _ in range(5)} == {200}
        assert "x-ratelimit-limit" not in (await client.get("/sessions")).headers


async def test_limits_can_be_switched_off(platform_databases, tmp_path) -> None:
    async with platform(tmp_path, await platform_databases(), rate_limits=False) as client:
        assert {(await client.post("/runs/stats")).status_code for _ in range(3)} != {429}


async def test_a_table_that_cannot_be_read_stops_the_start(platform_databases, tmp_path) -> None:
    table = tmp_path / "limits.txt"
    table.write_text("/workspaces | x-api-key | lots | 9/600 | Few\n")
    with pytest.raises(UserMistake, match="line 1: Invalid limit 'lots'"):
        async with platform(tmp_path, await platform_databases(), rate_limits_file=str(table)):
            pass


async def test_forwarded_headers_of_untrusted_peers_are_ignored(platform_databases, tmp_path) -> None:
    table = tmp_path / "limits.txt"
    table.write_text("/info | IP | 2/600 | 2/600 | Few\n")
    async with platform(tmp_path, await platform_databases(), rate_limits_file=str(table)) as client:
        claimed = [{"x-api-key": "", "x-forwarded-for": f"203.0.113.{number}"} for number in range(3)]
        assert [(await client.get("/info", headers=each)).status_code for each in claimed] == [200, 200, 429]


async def test_requests_without_a_valid_key_get_401_until_they_flood(platform_databases, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(middleware, "UNAUTHORIZED", Limit(3, 600))
    table = tmp_path / "limits.txt"
    table.write_text("/workspaces | IP | 1/600 | 1/600 | Few\n/login | IP | 1/600 | 1/600 | Few\n")

    async with platform(tmp_path, await platform_databases(), rate_limits_file=str(table)) as client:
        assert (await client.get("/workspaces")).status_code == 200

        for headers in (
            {"x-api-key": ""},
            {"x-api-key": "lsv2_pt_bad"},
            {"x-api-key": "", "authorization": "Bearer x"},
        ):
            refused = await client.get("/workspaces", headers=headers)
            assert (refused.status_code, "retry-after" in refused.headers) == (401, False), headers

        flood = await client.get("/workspaces", headers={"x-api-key": ""})
        assert (flood.status_code, "retry-after" in flood.headers) == (429, True)
        assert (await client.get("/workspaces")).status_code == 429, "a good key has no more than its limit"
        guesses = [await client.post("/login", json={"email": "a@b.c", "password": "x" * 12}) for _ in range(2)]
        assert [response.status_code for response in guesses] == [401, 429], "a public route does not ask for a key"
        assert (await client.get("/workspaces/nothing", headers={"x-api-key": ""})).status_code == 429


async def test_a_valid_bearer_key_over_its_limit_gets_429(platform_databases, tmp_path) -> None:
    table = tmp_path / "limits.txt"
    table.write_text("/workspaces | IP | 1/600 | 1/600 | Few\n")
    async with platform(tmp_path, await platform_databases(), rate_limits_file=str(table)) as client:
        bearer = {"x-api-key": "", "authorization": f"Bearer {KEY}"}
        assert [(await client.get("/workspaces", headers=bearer)).status_code for _ in range(2)] == [200, 429]


async def test_a_caller_sees_what_is_left_of_each_limit(platform_databases, tmp_path) -> None:
    async with platform(tmp_path, await platform_databases()) as client:
        await client.get("/sessions")
        found = {one["match"]: one for one in (await client.get("/limits")).json()["rates"]}
        assert found["any"]["count"] == 1000
        assert found["any"]["remaining"] < 1000
        assert found["any"]["seconds_left"] is not None
        assert (found["/runs/stats"]["remaining"], found["/runs/stats"]["seconds_left"]) == (1, None)
        assert not {"/public/download", "POST /login"} & found.keys(), "others at its address use these too"
