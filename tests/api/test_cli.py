"""The command line against a platform: what scripts read and what people see."""

import asyncio
import io
import json
import subprocess
import tarfile
from typing import Any

import pytest

from portside.cli.greeting import ask_agent
from portside.kernel.errors import UserMistake
from tests.api.control_server import Control
from tests.commands import run_here
from tests.conftest import eventually
from tests.preloaded import run_command
from tests.receiver import Receiver, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def platform(plane: Control) -> Control:
    return plane


@pytest.fixture
def portside(platform, tmp_path):
    """Run a command with the platform's address and key."""
    url = str(platform.client.base_url)
    key = platform.client.headers["x-api-key"]

    async def run(*arguments: str, key: str = key, code: int = 0, stdin: str = "", beside: bool = False) -> str:
        options = ("--url", url, "--api-key", key, "--home", str(tmp_path))
        done = await asyncio.to_thread(run_command, *arguments, *options, stdin=stdin)
        assert done.returncode == code, done.stderr
        return done.stderr if code or beside else done.stdout

    return run


async def test_access_is_shown_and_set(platform, portside) -> None:
    deploy = ("deploy", "https://git.example.com/team/one.git", "--no-wait", "--json", "--agent-role", "Editor")
    assert json.loads(await portside(*deploy))["agent_access"] == {"allow": "roles", "roles": ["Editor"]}
    heading, row = (await portside("deployments", "show", "one")).splitlines()[:2]
    assert row[heading.index("AGENT ACCESS") :].split()[0] == "Editor"
    again = (*deploy[:-2], "--agent-access", "permission")
    assert json.loads(await portside(*again))["agent_access"] == {"allow": "permission", "roles": []}
    assert await portside("deployments", "access", "one") == "permission\n"

    access = ("deployments", "access", "one", "--role", "Editor", "--role", "Viewer")
    assert await portside(*access) == "Editor, Viewer\n"
    refused = await portside("deployments", "access", "one", "roles", code=1)
    assert "must name roles" in refused
    assert "Editor, Viewer" in await portside("deployments", "token", "one", code=1)
    assert await portside("deployments", "access", "one", "workspace") == "workspace\n"
    token = json.loads(await portside("deployments", "token", "one", "--json"))
    assert token["token_type"] == "bearer"

    assert (await portside("deployments", "token", "one")).count(".") == 2


async def test_pinned_threads_are_set_and_counted(platform, portside) -> None:
    deploy = ("deploy", "https://git.example.com/team/one.git", "--no-wait", "--json", "--pin-threads", "12")
    made = json.loads(await portside(*deploy))
    assert made["pin_threads"] == 12
    assert json.loads(await portside(*deploy[:-2]))["pin_threads"] == 12
    assert await portside("deployments", "pin-threads", "one") == "12 h\n"
    assert "8760" in await portside("deployments", "pin-threads", "one", "9000", code=2)
    assert "THREADS " not in (await portside("deployments", "show", "one")).partition("REVISION")[2]

    report = {"threads_by_revision": {made["latest_revision_id"]: 3}}
    answer = await platform.client.put(f"/internal/deployments/{made['id']}/metrics", json=report)
    assert answer.status_code == 204, answer.text
    heading, *rows = (await portside("deployments", "show", "one")).partition("REVISION")[2].splitlines()
    counts = {row.split()[0]: row[heading.index("THREADS") + len("REVISION") :].split()[0] for row in rows}
    assert counts[made["latest_revision_id"]] == "3"
    assert await portside("deployments", "pin-threads", "one", "0") == "no\n"


async def test_json_output(platform, portside) -> None:
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


async def test_table_output(platform, portside) -> None:
    made = await platform.create("one")
    heading, row = (await portside("deployments", "list")).splitlines()
    assert heading.split() == ["NAME", "STATUS", "URL", "VERSION", "ID", "REASON"]
    assert row.split() == ["one", "AWAITING_DATABASE", made["id"]]
    assert heading.index("ID") == row.index(made["id"])
    assert "lsv2_pt_" in await portside("keys", "list")
    assert made["latest_revision_id"] in await portside("deployments", "show", made["id"])


def git(folder, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


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


async def test_variables_of_an_env_file_become_secrets_and_are_not_printed(platform, portside, tmp_path) -> None:
    file = tmp_path / "many.env"
    file.write_text("export MODEL_KEY='a-value with spaces'\n# comment\nOTHER=from-file\nPORT=1\nNAMED_ONLY\n")
    deploy = ("deploy", "https://git.example.com/team/two.git", "--env-file", str(file), "--no-wait")
    output = await portside(*deploy, "--secret", "OTHER=given", beside=True)
    assert "PORT is left out: the platform sets it" in output
    assert "a-value" not in output
    (made,) = (await platform.client.get("/v2/deployments", params={"name": "two"})).json()["resources"]

    assert made["secrets"] == [
        {"name": "MODEL_KEY", "value": "a-value with spaces"},
        {"name": "OTHER", "value": "given"},
    ]

    file.write_bytes(b"KEY=\xff\n")
    assert "many.env is not UTF-8 text" in await portside(*deploy, code=1)


async def test_a_local_repository_is_fetched_or_uploaded(platform, portside, project) -> None:
    git(project, "init", "--quiet", "--initial-branch=trunk")
    assert "has no commit on its branch yet" in await portside("deploy", str(project), "--no-wait", code=1)
    git(project, "add", "langgraph.json", "a.py")
    git(project, "commit", "--quiet", "-m", "work")

    fetched = json.loads(await portside("deploy", str(project), "--name", "fetched", "--no-wait", "--json"))
    assert (fetched["source"], fetched["source_config"]["repo_url"]) == ("git_hosting", str(project))
    assert fetched["source_revision_config"]["repo_ref"] == "trunk"
    uploaded = ("deploy", str(project), "--name", "uploaded", "--no-wait", "--json")
    first = json.loads(await portside(*uploaded, "--upload"))
    second = json.loads(await portside(*uploaded))
    assert (first["source"], second["id"], second["source"]) == ("internal_source", first["id"], "internal_source")


async def test_uncommitted_files_and_missing_branches_are_reported(portside, project) -> None:
    git(project, "init", "--quiet", "--initial-branch=trunk")
    git(project, "add", "langgraph.json", "a.py")
    git(project, "commit", "--quiet", "-m", "work")
    git(project, "branch", "other")

    deploy = ("deploy", str(project), "--no-wait", "--json")
    hint = "changed file is not committed; commit them or use --upload"
    assert f"1 {hint}" in await portside(*deploy, beside=True)
    (project / ".gitignore").write_text(".env\n")
    (project / "a.py").write_text("g = 2")
    assert "2 changed files are not committed" in await portside(*deploy, "--ref", "trunk", beside=True)
    assert "not committed" not in await portside(*deploy, "--ref", "other", beside=True)

    assert "not committed" not in await portside(*deploy, "--upload", beside=True)
    assert "has no branch nope; its branches are other, trunk" in await portside(*deploy, "--ref", "nope", code=1)
    assert "--ref, --integration" in await portside(*deploy, "--ref", "other", "--upload", code=1)
    git(project, "checkout", "--quiet", "--detach")

    detached = json.loads(await portside(*deploy, "--name", "detached"))
    assert detached["source_revision_config"]["repo_ref"] == git(project, "rev-parse", "HEAD")


async def test_an_address_without_a_ref_is_deployed_from_its_default_branch(portside) -> None:
    deploy = ("deploy", "https://git.example.com/team/three.git", "--no-wait", "--json")
    assert json.loads(await portside(*deploy))["source_revision_config"]["repo_ref"] is None
    assert json.loads(await portside(*deploy, "--ref", "next"))["source_revision_config"]["repo_ref"] == "next"
    assert json.loads(await portside(*deploy))["source_revision_config"]["repo_ref"] == "next"
    assert "--upload is for folders" in await portside(*deploy, "--upload", code=1)


async def test_rollback_serves_an_earlier_revision(platform, portside) -> None:
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


async def test_logs_prints_the_relevant_log(platform, portside) -> None:
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


async def test_control_characters_are_escaped(platform, portside) -> None:
    evil = "\x1b]0;owned\x07\x9b2J\u202e\r00:00:00 info    forged"
    made = await platform.create("one")

    path = f"/internal/deployments/{made['id']}/revisions/{made['latest_revision_id']}/logs"
    for message in (f"\x1b[32mgreen\x1b[0m {evil}", f"failed\n{evil}\n00:00:00 error   forged"):
        entry = {"timestamp": 0, "level": "info", "message": message}
        await platform.client.post(path, json={"type": "build", "entries": [entry]})

    shown = r"\x1b]0;owned\x07\x9b2J\u202e\x0d00:00:00 info    forged"
    assert await portside("logs", "one", "--build") == (
        f"00:00:00 info    green {shown}\n00:00:00 info    failed\n    {shown}\n    00:00:00 error   forged\n"
    )
    await platform.listener.walk(made["id"], made["latest_revision_id"], "AWAITING_BUILD")

    reason = {"reason": f"no {evil} here\nsecond line"}
    assert (await platform.listener.report(made["id"], made["latest_revision_id"], "BUILD_FAILED", **reason)).is_success
    assert rf"no {shown} here" in await portside("deployments", "show", "one")
    assert "\x7f" not in await portside("deployments", "show", "one", "--json")


async def _new_deployment(platform, name: str) -> dict:
    async def found():
        listed = (await platform.client.get("/v2/deployments", params={"name": name})).json()["resources"]
        return listed[0] if listed and listed[0]["latest_revision_id"] else None

    return await eventually(found)


async def _log(platform, made: dict, kind: str, *lines: tuple[str, str]) -> None:
    path = f"/internal/deployments/{made['id']}/revisions/{made['latest_revision_id']}/logs"
    entries = [{"timestamp": place, "level": level, "message": text} for place, (level, text) in enumerate(lines)]
    assert (await platform.client.post(path, json={"type": kind, "entries": entries})).status_code < 300


async def test_a_failed_build_is_printed_once_without_package_lists(platform, portside) -> None:
    deploying = asyncio.create_task(portside("deploy", "https://git.example.com/team/two.git", code=1))
    made = await _new_deployment(platform, "two")
    said = [("info", " + langgraph==1.2.3"), ("info", "error: no network"), ("info", "  caused by: a cable")]
    await _log(platform, made, "build", *said, ("error", "cannot be installed: error: no network"))
    await platform.listener.walk(made["id"], made["latest_revision_id"], "AWAITING_BUILD", "BUILDING")

    reason = "cannot be installed: error: no network\n  caused by: a cable\n  and dust"
    await platform.listener.report(made["id"], made["latest_revision_id"], "BUILD_FAILED", reason=reason)
    printed = (await deploying).splitlines()
    assert [line for line in printed if "==" in line] == []
    assert [line for line in printed if "a cable" in line] == ["·     caused by: a cable"]
    end = printed.index("error: the revision failed with BUILD_FAILED: cannot be installed: error: no network")
    assert [line.strip() for line in printed[end + 1 :]] == ["and dust"]


async def test_a_failed_start_is_printed_with_its_warnings(platform, portside) -> None:
    deploying = asyncio.create_task(portside("deploy", "https://git.example.com/team/two.git", code=1))
    made = await _new_deployment(platform, "two")
    walk = ("AWAITING_BUILD", "BUILDING", "AWAITING_DEPLOY", "DEPLOYING")
    await platform.listener.walk(made["id"], made["latest_revision_id"], *walk)

    hang = ("warning", "graph 'a' is still importing (a.py, line 3)\nthe stack")
    await _log(platform, made, "deploy", ("info", "listening"), hang)
    status = f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}"
    assert (await platform.client.get(status)).json()["status"] == "DEPLOYING"
    reason = "ImportError: cannot import name 'x'\nthe server exited with code 1; its output:\nthe rest"

    await platform.listener.report(made["id"], made["latest_revision_id"], "DEPLOY_FAILED", reason=reason)
    printed = await deploying
    assert "listening" not in printed
    assert printed.count("graph 'a' is still importing (a.py, line 3)") == 1
    assert "the stack" not in printed
    last = printed.splitlines()[-4:]
    assert last[0] == "error: the revision failed with DEPLOY_FAILED: ImportError: cannot import name 'x'"

    assert [line.strip() for line in last[1:3]] == ["the server exited with code 1; its output:", "the rest"]
    assert "portside logs DEPLOYMENT --build" in last[3]
    shown = await portside("deployments", "show", "two")
    assert "the newest revision failed with DEPLOY_FAILED: ImportError: cannot import name 'x'" in shown
    assert "the rest" in shown


async def test_list_shows_failed_deployments_and_how_many_more_exist(platform, portside) -> None:
    for name, status in (("fails", "BUILD_FAILED"), ("rests", "INTERRUPTED"), ("third", None)):
        made = await platform.create(name)
        ready = {"status": "READY", "custom_url": "http://127.0.0.1:9"}
        await platform.listener.client.put(f"/internal/deployments/{made['id']}/status", json=ready)

        path = f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}"
        if status == "BUILD_FAILED":
            await platform.listener.walk(made["id"], made["latest_revision_id"], "AWAITING_BUILD", "BUILDING")
            await platform.listener.report(made["id"], made["latest_revision_id"], status, reason="no such branch")
        elif status == "INTERRUPTED":
            assert (await platform.client.post(f"{path}/interrupt")).status_code == 200

    rows = {line.split()[0]: line for line in (await portside("deployments", "list")).splitlines()}
    assert rows["fails"].split()[1] == "FAILED"
    assert rows["fails"].endswith("no such branch")
    assert rows["rests"].split()[1] == "UNUSED"
    assert rows["third"].split()[1] == "READY"

    # The API has its own statuses.
    listed = json.loads(await portside("deployments", "list", "--json"))
    assert {one["name"]: one["status"] for one in listed} == {"third": "READY", "rests": "UNUSED", "fails": "UNUSED"}
    cut = await portside("deployments", "list", "--limit", "1", beside=True)
    assert "2 more deployments; continue with --offset 1" in cut
    assert "more" not in await portside("deployments", "list", "--limit", "3", beside=True)


async def test_replicas_are_set_and_what_they_use_is_shown(platform, portside) -> None:
    made = await platform.create("one")
    assert "REPLICAS" not in await portside("deployments", "show", "one")
    scale = json.loads(await portside("deployments", "scale", "one", "--max", "3", "--queue-min", "2", "--json"))
    assert scale == {"min_scale": None, "max_scale": 3, "queue_min_scale": 2, "queue_max_scale": None}
    assert "the revision's" in await portside("deployments", "scale", "one", "--min", "2")
    assert await portside("deployments", "sleep", "one") == "sleeps never\n"
    assert await portside("deployments", "sleep", "one", "15m") == "sleeps after 15m\n"

    slept = json.loads(await portside("deployments", "sleep", "one", "90s", "--json"))
    assert slept == {"sleep_after_s": 90, "is_asleep": False}
    assert await portside("deployments", "sleep", "one", "never") == "sleeps never\n"
    reported = {"replicas": 2, "cpu": 0.25, "restarts": 41}
    response = await platform.client.put(f"/internal/deployments/{made['id']}/metrics", json=reported)
    assert response.status_code == 204
    shown = await portside("deployments", "show", "one")
    assert "RESTARTS" in shown

    assert "41" in shown


async def test_a_refused_key_shows_in_the_list_and_in_detail(platform, portside) -> None:
    await platform.create("one")
    keys = json.loads(await portside("keys", "list", "--json"))
    (key,) = [key["id"] for key in keys if key["used_by"] == "deployment one"]
    await portside("keys", "revoke", key, "--force")

    for command in (("list",), ("show", "one")):
        assert "The platform refuses its service key (401)" in await portside("deployments", *command)


async def test_secrets_are_listed_set_and_removed_and_never_printed(platform, portside) -> None:
    made = await platform.create("one", secrets=[{"name": "FIRST", "value": "first-value"}])
    assert await portside("secrets", "list", "one") == "FIRST\n"
    multiline = "second-value\nof two lines"
    output = await portside("secrets", "set", "one", "SECOND", "--no-wait", "--json", stdin=f"{multiline}\n")
    changed = await platform.get(made["id"])

    assert json.loads(output) == {
        "deployment_id": made["id"],
        "revision_id": changed["latest_revision_id"],
        "secrets": ["FIRST", "SECOND"],
    }

    assert changed["latest_revision_id"] != made["latest_revision_id"]
    assert changed["secrets"] == [
        {"name": "FIRST", "value": "first-value"},
        {"name": "SECOND", "value": multiline},
    ]

    assert json.loads(await portside("secrets", "list", "one", "--json")) == ["FIRST", "SECOND"]
    assert "has no secret THIRD" in await portside("secrets", "unset", "one", "THIRD", "--no-wait", code=1)
    assert "no value of THIRD" in await portside("secrets", "set", "one", "THIRD", "--no-wait", code=1)
    await portside("secrets", "set", "one", "FIRST", "--no-wait", stdin="newer")
    assert {"name": "FIRST", "value": "newer"} in (await platform.get(made["id"]))["secrets"]
    both = [portside("secrets", "set", "one", name, "--no-wait", stdin="1") for name in ("THIRD", "FOURTH")]

    await asyncio.gather(*both, portside("secrets", "unset", "one", "FIRST", "SECOND", "--no-wait"))
    assert {secret["name"] for secret in (await platform.get(made["id"]))["secrets"]} == {"THIRD", "FOURTH"}
    await portside("secrets", "unset", "one", "THIRD", "FOURTH", "--no-wait")
    assert (await platform.get(made["id"]))["secrets"] == []
    assert "has no secrets" in await portside("secrets", "list", "one", beside=True)


async def test_integrations_are_added_used_and_removed(platform, portside) -> None:
    added = await portside(
        "integrations", "add", "forge", "--kind", "gitea", "--base-url", "https://git.example.com", stdin="token-1\n"
    )
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


async def test_delete_asks_for_confirmation(platform, portside) -> None:
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


async def test_example_agent_that_fails_is_a_mistake_and_does_not_stop_the_platform() -> None:
    receiver = Receiver()
    receiver.status = 500
    async with serve(receiver) as url:
        with pytest.raises(UserMistake, match=r"does not answer: .*500.*portside deployments logs"):
            await asyncio.to_thread(ask_agent, url, {})

    with pytest.raises(UserMistake, match="does not answer"):
        await asyncio.to_thread(ask_agent, url, {})


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (308, [(b"location", b"https://portside.example.com/auth")], "redirects to https://portside.example.com/auth"),
        (200, [(b"content-type", b"text/html")], "there is no platform at http"),
    ],
)
async def test_address_that_is_not_a_platforms_is_named(status: int, headers: Any, says: str) -> None:
    async def page(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"<html>"})

    async with serve(page) as url:
        done = await asyncio.to_thread(run_here, "account", "show", "--url", url, "--api-key", "x")

    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


async def test_a_wrong_key_is_reported(portside) -> None:
    assert "does not accept this key" in await portside("keys", "list", key="wrong", code=1)
