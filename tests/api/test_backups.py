"""The routes of backups, for platforms that take them and for those that do not."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from portside.kernel.settings import load_settings
from portside.platform.backups import record_trial
from portside.platform.settings import PlatformSettings
from tests.commands import run_here
from tests.conftest import eventually
from tests.platforms import Platform
from tests.servers import KEY, ServerProcess, platform_server

HEADERS = {"X-Api-Key": KEY}


async def test_platform_without_a_schedule_says_so(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await platform.call("GET", "/system/backups")
    assert found == {"schedule": None, "backups": [], "attempts": [], "problem": None, "restorable": []}
    monkeypatch.setenv("PORTSIDE_BACKUP_PASSPHRASE", "correct horse battery")
    monkeypatch.setenv("DATABASE_URL", platform.database_url)

    by_hand = ("backup", "create", "--home", str(platform.home), "--to", str(tmp_path / "stored"))
    listed = await asyncio.to_thread(run_here, "backup", "list", str(tmp_path / "stored"))
    assert listed.stdout == f"there is no backup in {tmp_path / 'stored'}\n"
    taken = await asyncio.to_thread(run_here, *by_hand)
    assert taken.returncode == 0, taken.stderr
    found = await platform.call("GET", "/system/backups")
    assert [each["location"] for each in found["attempts"]] == [str(tmp_path / "stored")]

    at_home = ("backup", "list", "--home", str(platform.home))
    nameless = await asyncio.to_thread(run_here, *at_home)
    assert (nameless.returncode, "BACKUP_TO" in nameless.stderr) == (1, True)
    monkeypatch.setenv("BACKUP_TO", str(tmp_path / "stored"))

    name = Path(taken.stdout.strip()).name
    assert name in (await asyncio.to_thread(run_here, *at_home)).stdout
    checked = await asyncio.to_thread(run_here, "backup", "verify", "--home", str(platform.home))
    assert f"{name} is complete" in checked.stdout
    await record_trial(load_settings(PlatformSettings, os.environ, home=str(platform.home)), name)

    (entry,) = (await platform.call("GET", "/audit-log?action=backup.try_restore"))["items"]
    assert (entry["actor_kind"], entry["object_name"]) == ("platform", name)

    refused = await platform.client.post("/system/backups")
    assert (refused.status_code, "set BACKUP_TO" in refused.json()["detail"]) == (409, True)

    key = await platform.call("POST", "/api-key", description="reads", permissions=["deployments:read"])
    for method in ("GET", "POST"):
        response = await platform.client.request(method, "/system/backups", headers={"X-Api-Key": key["key"]})
        assert response.status_code == 403


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    settings = {"BACKUP_TO": str(tmp_path / "stored"), "PORTSIDE_BACKUP_PASSPHRASE": "correct horse battery"}
    with platform_server(tmp_path / "a home", **settings) as running:
        yield running


@pytest.mark.thorough
async def test_backups_are_listed_and_taken(server: ServerProcess, tmp_path: Path) -> None:
    async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS, timeout=300) as http:

        async def has(number: int) -> bool:
            found = (await http.get("/system/backups")).json()
            assert [each["error"] for each in found["attempts"] if each["error"]] == []
            return len(found["backups"]) == len(found["attempts"]) == number and not found["schedule"]["is_running"]

        await eventually(lambda: has(1))
        assert (await http.post("/system/backups")).status_code == 204
        await eventually(lambda: has(2))
        response = await http.get("/system/backups")
        found = response.json()

    assert [each["kind"] for each in found["backups"]] == ["data", "data"]
    assert found["backups"][0]["created_at"] > found["backups"][1]["created_at"]
    assert found["backups"][0]["name"] == found["attempts"][0]["name"]
    assert found["schedule"]["restore_command"] == f"portside backup restore {tmp_path}/stored --home NEW_FOLDER"
    assert found["schedule"]["next_at"] > found["backups"][0]["created_at"]
    assert "correct horse" not in response.text
