"""The command line against a platform: what scripts read and what people see."""

import asyncio
import json
import subprocess
import sys

import pytest

from tests.api.control_server import control


@pytest.fixture
async def platform(fresh_database):
    async with control(await fresh_database()) as platform:
        yield platform


@pytest.fixture
def portside(platform, tmp_path):
    """Run a command with the platform's address and key."""
    url, key = str(platform.client.base_url), platform.client.headers["x-api-key"]

    async def run(*arguments: str, key: str = key, code: int = 0) -> str:
        command = [
            sys.executable,
            "-m",
            "portside",
            *arguments,
            "--url",
            url,
            "--api-key",
            key,
            "--home",
            str(tmp_path),
        ]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL
        )
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    return run


async def test_what_scripts_read_is_json(platform, portside) -> None:
    made = await platform.create("one")
    assert json.loads(await portside("deployments", "list", "--json"))[0]["id"] == made["id"]
    shown = json.loads(await portside("deployments", "show", "one", "--json"))
    assert (shown["id"], len(shown["revisions"])) == (made["id"], 1)
    key = json.loads(await portside("keys", "create", "--permission", "deployments:read", "--json"))
    assert key["permissions"] == ["deployments:read"]
    assert "key" not in json.loads(await portside("keys", "list", "--json"))[0]
    deploy = ("deploy", "https://git.example.com/team/two.git", "--secret", "A=b=c", "--no-wait", "--json")
    deployed = json.loads(await portside(*deploy))
    assert deployed["name"] == "two"
    again = json.loads(await portside(*deploy))
    assert again["id"] == deployed["id"]
    assert again["latest_revision_id"] != deployed["latest_revision_id"]


async def test_what_people_see_is_a_table(platform, portside) -> None:
    made = await platform.create("one")
    heading, row = (await portside("deployments", "list")).splitlines()
    assert heading.split() == ["NAME", "STATUS", "URL", "ID"]
    assert row.split() == ["one", "AWAITING_DATABASE", made["id"]]
    assert heading.index("ID") == row.index(made["id"])
    assert "lsv2_pt_" in await portside("keys", "list")
    assert made["latest_revision_id"] in await portside("deployments", "show", made["id"])


async def test_a_deployment_is_deleted_only_when_it_was_meant(platform, portside) -> None:
    made = await platform.create("one")
    await portside("deployments", "delete", "one", code=130)
    assert (await platform.get(made["id"]))["status"] == "AWAITING_DATABASE"
    assert "being deleted" in await portside("deployments", "delete", "one", "--yes")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("deployments", "show", "nobody"), "no deployment named nobody"),
        (("deployments", "show", "0190a0c0-0000-7000-8000-000000000001"), "404: "),
        (("keys", "revoke", "x"), "422: key_id: "),
        (("deploy", "https://git.example.com/a.git", "--name", "Not A Label", "--no-wait"), "422: name: "),
        (("deploy", "https://git.example.com/a.git", "--secret", "novalue"), "NAME=VALUE"),
    ],
)
async def test_refusals_are_one_line(portside, arguments, says: str) -> None:
    said = await portside(*arguments, code=1)
    assert said.startswith("error: ")
    assert says in said
    assert said.count("\n") == 1


async def test_a_wrong_key_is_told_as_such(portside) -> None:
    assert "does not accept this key" in await portside("keys", "list", key="wrong", code=1)
