"""The command line against a platform: what scripts read and what people see."""

import asyncio
import io
import json
import subprocess
import sys
import tarfile

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

    async def run(*arguments: str, key: str = key, code: int = 0, stdin: str = "", beside: bool = False) -> str:
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
            subprocess.run, command, capture_output=True, text=True, check=False, timeout=60, input=stdin
        )
        assert done.returncode == code, done.stderr
        return done.stderr if code or beside else done.stdout

    return run


async def test_what_scripts_read_is_json(platform, portside) -> None:
    made = await platform.create("one")
    assert json.loads(await portside("deployments", "list", "--json"))[0]["id"] == made["id"]
    shown = json.loads(await portside("deployments", "show", "one", "--json"))
    assert (shown["id"], len(shown["revisions"])) == (made["id"], 1)
    key = json.loads(await portside("keys", "create", "--permission", "deployments:read", "--json"))
    assert key["permissions"] == ["deployments:read"]
    assert "key" not in json.loads(await portside("keys", "list", "--json"))[0]
    (revision,) = json.loads(await portside("deployments", "revisions", "one", "--json"))
    assert revision["id"] == made["latest_revision_id"]
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


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "My Agent"
    folder.mkdir()
    (folder / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"a": "./a.py:g"}, "env": ".env"}')
    (folder / "a.py").write_text("g = 1")
    (folder / ".env").write_text("KEY=from-file\nOTHER=kept\nDATABASE_URI=reserved\n")
    return folder


async def test_a_folder_is_packed_uploaded_and_deployed_again(platform, portside, project) -> None:
    deploy = ("deploy", str(project), "--secret", "KEY=given", "--no-wait", "--json")
    first = json.loads(await portside(*deploy))
    assert (first["name"], first["source"]) == ("my-agent", "internal_source")
    assert first["secrets"] == [{"name": "KEY", "value": "given"}, {"name": "OTHER", "value": "kept"}]
    assert first["source_revision_config"]["graph_config_path"] == "langgraph.json"
    path = f"/internal/deployments/{first['id']}/revisions/{first['latest_revision_id']}/archive"
    with tarfile.open(fileobj=io.BytesIO((await platform.client.get(path)).content)) as archive:
        assert archive.getnames() == [".env", "a.py", "langgraph.json"]
        assert archive.extractfile(".env").read() == b""
    again = json.loads(await portside(*deploy))
    assert again["id"] == first["id"]
    assert again["latest_revision_id"] != first["latest_revision_id"]
    assert again["source_revision_config"] != first["source_revision_config"]


async def test_a_local_repository_is_fetched_and_uploaded_where_that_is_asked_for(platform, portside, project) -> None:
    (project / ".git").mkdir()
    fetched = json.loads(await portside("deploy", str(project), "--name", "fetched", "--no-wait", "--json"))
    assert (fetched["source"], fetched["source_config"]["repo_url"]) == ("git_hosting", str(project))
    uploaded = ("deploy", str(project), "--name", "uploaded", "--no-wait", "--json")
    first = json.loads(await portside(*uploaded, "--upload"))
    second = json.loads(await portside(*uploaded))
    assert (first["source"], second["id"], second["source"]) == ("internal_source", first["id"], "internal_source")


async def test_an_earlier_revision_serves_again(platform, portside) -> None:
    made = await platform.create("one", source_revision_config={"repo_ref": "v1"})
    assert "no earlier revision" in await portside("rollback", "one", code=1)
    await platform.listener.deploy(made["id"], made["latest_revision_id"])
    assert "no earlier revision" in await portside("rollback", "one", code=1)
    for ref, status in (("v2", "BUILD_FAILED"), ("v3", None)):
        changed = await platform.patch(made["id"], source_revision_config={"repo_ref": ref})
        if status:
            await platform.listener.walk(made["id"], changed["latest_revision_id"], "AWAITING_BUILD", status)
    await platform.listener.deploy(made["id"], changed["latest_revision_id"])
    back = json.loads(await portside("rollback", "one", "--no-wait", "--json"))
    assert back["source_revision_config"]["repo_ref"] == "v1"
    assert back["active_revision_id"] == changed["latest_revision_id"]
    named = json.loads(await portside("rollback", "one", changed["latest_revision_id"], "--no-wait", "--json"))
    assert named["source_revision_config"]["repo_ref"] == "v3"


async def test_the_log_that_matters_is_printed(platform, portside) -> None:
    made = await platform.create("one")
    path = f"/internal/deployments/{made['id']}/revisions/{made['latest_revision_id']}/logs"
    for kind in ("build", "deploy"):
        entry = {"timestamp": 0, "level": "info", "message": f"the {kind} log"}
        await platform.client.post(path, json={"type": kind, "entries": [entry]})
    await platform.listener.walk(made["id"], made["latest_revision_id"], "AWAITING_BUILD", "BUILD_FAILED")
    for command in (("logs",), ("deployments", "logs")):
        assert await portside(*command, "one") == "00:00:00 info    the build log\n"
    assert await portside("logs", "one", "--type", "deploy") == "00:00:00 info    the deploy log\n"
    changed = await platform.patch(made["id"], source_revision_config={"repo_ref": "main"})
    await platform.listener.deploy(made["id"], changed["latest_revision_id"])
    assert await portside("logs", "one") == ""
    assert "the build log of this revision is empty" in await portside("logs", "one", "--build", beside=True)
    assert await portside("logs", "one", "--build", "--revision", made["latest_revision_id"]) != ""


async def test_replicas_are_set_and_what_they_use_is_shown(platform, portside) -> None:
    made = await platform.create("one")
    assert "REPLICAS" not in await portside("deployments", "show", "one")
    scale = json.loads(await portside("deployments", "scale", "one", "--max", "3", "--queue-min", "2", "--json"))
    assert scale == {"min_scale": None, "max_scale": 3, "queue_min_scale": 2, "queue_max_scale": None}
    assert "as its revision says" in await portside("deployments", "scale", "one", "--min", "2")
    told = {"replicas": 2, "cpu": 0.25, "restarts": 41}
    answer = await platform.client.put(f"/internal/deployments/{made['id']}/metrics", json=told)
    assert answer.status_code == 204
    shown = await portside("deployments", "show", "one")
    assert "RESTARTS" in shown
    assert "41" in shown


async def test_integrations_are_added_used_and_removed(platform, portside) -> None:
    added = await portside("integrations", "add", "forge", "--kind", "gitea", "--base-url", "https://git.example.com",
                           stdin="token-1\n")  # fmt: skip
    (_, row) = (await portside("integrations", "list")).splitlines()[1:]
    assert row.split() == ["forge", "gitea", "https://git.example.com", "yes", "no", added.strip()]
    assert "no token" in await portside("integrations", "token", "forge", code=1)
    assert "new token" in await portside("integrations", "token", "forge", stdin="token-2")
    hook = json.loads(await portside("integrations", "webhook", "forge", "--json"))
    assert hook["url"].endswith(f"/v1/webhooks/{added.strip()}")
    deploy = ("deploy", "https://git.example.com/team/two.git", "--integration", "forge", "--build-on-push")
    made = json.loads(await portside(*deploy, "--no-wait", "--json"))
    assert made["source_config"]["integration_id"] == added.strip()
    assert made["source_config"]["build_on_push"] is True
    assert "two" in await portside("integrations", "remove", "forge", code=1)
    await portside("integrations", "add", "other", "--kind", "github", "--no-token")
    assert "removed" in await portside("integrations", "remove", "other")
    assert "no integration named other" in await portside("integrations", "remove", "other", code=1)


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
