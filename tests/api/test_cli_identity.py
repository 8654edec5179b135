"""The command line on who may do what: workspaces, members, roles, logins and keys, against a real platform."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from structlog.testing import capture_logs

from tests.api.hosted import Hosted, open_hosted
from tests.commands import run_here

PASSWORD = "correct horse battery"


class Portside(Protocol):
    """Runs a command as the first admin, as another key, or as whoever is logged in."""

    async def __call__(self, *arguments: str, key: str | None = "", code: int = 0, stdin: str = "") -> str: ...


@pytest.fixture
async def server(hosted_databases: Callable[[], Awaitable[str]]) -> AsyncIterator[Hosted]:
    # What the server logs in this process is not what the commands say.
    with capture_logs():
        async with open_hosted(await hosted_databases()) as running:
            yield running


@pytest.fixture
def portside(server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Portside:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    async def run(*arguments: str, key: str | None = "", code: int = 0, stdin: str = "") -> str:
        named = [] if key is None else ["--api-key", key or server.key]
        connection = [*named, "--url", server.url, "--home", str(tmp_path)]
        line = [*arguments, *([server.url] if arguments[0] in {"login", "logout"} else connection)]
        done = await asyncio.to_thread(run_here, *line, stdin=stdin)
        assert done.returncode == code, done.stderr

        return done.stderr if code else done.stdout

    return run


async def run_json(portside: Portside, *arguments: str, **more: Any) -> Any:
    return json.loads(await portside(*arguments, "--json", **more))


async def test_the_organization_and_its_workspaces(portside: Portside) -> None:
    assert "My organization" in await portside("organization", "show")
    await portside("organization", "rename", "Acme")
    assert (await run_json(portside, "organization", "show"))["display_name"] == "Acme"
    team = (await portside("workspaces", "create", "Team B")).strip()
    assert "Team C" in await portside("workspaces", "rename", "team-b", "Team C")
    heading, _first, row = (await portside("workspaces", "list")).splitlines()
    assert heading.split() == ["NAME", "HANDLE", "ROLE", "CREATED", "ID"]

    assert (row.split()[:4], row.split()[-1]) == (["Team", "C", "team-b", "Admin"], team)

    for named in ("team-b", "Team C", team):
        assert (await run_json(portside, "account", "show", "--workspace", named))["tenant_id"] == team

    assert "no workspace nowhere" in await portside("account", "show", "--workspace", "nowhere", code=1)
    await portside("workspaces", "create", "Team C", "--handle", "other")
    assert "2 workspaces are named Team C" in await portside("account", "show", "--workspace", "Team C", code=1)
    assert "nothing was deleted" in await portside("workspaces", "delete", "other", stdin="team-b", code=1)
    assert "Team C is deleted" in await portside("workspaces", "delete", "other", stdin="other")
    await portside("workspaces", "delete", team, "--yes")
    assert len(await run_json(portside, "workspaces", "list")) == 1

    assert "cannot be deleted" in await portside("workspaces", "delete", "default", "--yes", code=1)


async def test_members_are_added_changed_and_removed(portside: Portside) -> None:
    added = await run_json(portside, "members", "add", "dev@example.com", "--name", "Dev", "--password", stdin=PASSWORD)
    assert (added["role_name"], added["full_name"]) == ("Organization User", "Dev")
    assert "already" in await portside("members", "add", "dev@example.com", code=1)
    team = ("--workspace", (await portside("workspaces", "create", "Team")).strip())
    assert "not a member of the workspace" in await portside(
        "members", "role", "dev@example.com", "Admin", *team, code=1
    )

    assert "Editor" in await portside("members", "add", "dev@example.com", *team)
    assert "not a member of the organization" in await portside("members", "add", "who@example.com", *team, code=1)
    assert "--name" in await portside("members", "add", "dev@example.com", "--name", "x", *team, code=1)
    assert "is now Viewer" in await portside("members", "role", "dev@example.com", "Viewer", *team)
    assert "dev@example.com  Dev " in await portside("members", "list", *team)
    assert "is now Organization Viewer" in await portside("members", "role", added["id"], "Organization Viewer")
    assert "role_id: is not a role" in await portside("members", "role", added["id"], "King", code=1)

    await portside("members", "remove", "dev@example.com", *team, code=130)
    assert "from the workspace" in await portside("members", "remove", "dev@example.com", "--yes", *team)
    assert "from the organization" in await portside("members", "remove", "dev@example.com", "--yes")
    assert [member["email"] for member in await run_json(portside, "members", "list")] == ["admin@localhost"]
    assert "needs an admin" in await portside("members", "remove", "admin@localhost", "--yes", code=1)
    assert "Organization Operator" in await portside("roles")
    assert len(await run_json(portside, "roles")) == 7


async def test_a_login_is_kept_used_and_ended(portside: Portside, tmp_path: Path) -> None:
    await portside("members", "add", "dev@example.com", "--password", stdin=PASSWORD)
    login = ("login", "--email", "dev@example.com")
    assert "the email or the password is wrong" in (await portside(*login, key=None, stdin="wrong", code=1)).lower()
    assert "no password was given" in await portside(*login, key=None, code=1)
    assert await portside(*login, key=None, stdin=PASSWORD) == "logged in as dev@example.com\n"
    assert "--workspace" in await portside("keys", "list", key=None, code=1)
    await portside("members", "add", "dev@example.com", "--workspace", "default")

    assert "in the workspace Default" in await portside(*login, key=None, stdin=PASSWORD)
    kept = tmp_path / "portside" / "logins.json"
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert PASSWORD not in kept.read_text()
    shown = await portside("account", "show", key=None)
    assert shown.splitlines()[0].split() == ["user", "dev@example.com"]

    assert (await run_json(portside, "account", "show"))["user_email"] == "admin@localhost"
    set_password = ("account", "password")
    assert "is wrong" in await portside(*set_password, key=None, stdin="x\nanother good password\n", code=1)
    await portside(*set_password, key=None, stdin=f"{PASSWORD}\nanother good password\n")
    await portside("workspaces", "create", "Other")
    await portside("members", "add", "dev@example.com", "--workspace", "other")
    await portside("members", "remove", "dev@example.com", "--yes", "--workspace", "default")

    assert "403" in await portside("keys", "list", key=None, code=1)
    assert "Other" in await portside("workspaces", "list", key=None)
    assert "Other" in await portside("account", "show", "--workspace", "other", key=None)
    assert "logged out" in await portside("logout", key=None)
    assert "you are not logged in" in await portside("account", "show", key=None, code=1)
    assert "you are not logged in" in await portside("logout", key=None, code=1)


async def test_an_expired_login_is_reported(server: Hosted, portside: Portside, tmp_path: Path) -> None:
    await portside("members", "add", "dev@example.com", "--password", stdin=PASSWORD)
    await portside("login", "--email", "dev@example.com", key=None, stdin=PASSWORD)
    token = json.loads((tmp_path / "portside" / "logins.json").read_text())[server.url]["token"]
    headers = {"authorization": f"Bearer {token}", "x-api-key": ""}
    assert (await server.client.post("/logout", headers=headers)).status_code == 204
    assert "has ended; log in again" in await portside("members", "list", key=None, code=1)


async def test_keys_of_every_kind_are_made_listed_and_revoked(server: Hosted, portside: Portside) -> None:
    other = (await portside("workspaces", "create", "Other")).strip()
    create = ("keys", "create")
    service = await run_json(portside, *create, "--role", "Viewer", "--expires", "30d", "--workspace", "other")
    assert (service["workspace_names"], service["expires_at"] is None) == (["Other"], False)
    personal = await run_json(portside, *create, "--of", "user", "--workspace", other, "--read-only")
    assert personal["key"].startswith("lsv2_pt_")
    assert personal["default_workspace_id"] == other

    assert "*" not in personal["permissions"]
    of_all = await run_json(portside, *create, "--of", "organization", "--org-role", "Organization Viewer")
    assert of_all["permissions"] == ["organization:read"]
    limited = await run_json(portside, *create, "--of", "organization", "--only", "other", "--expires", "2100-01-31")
    assert (limited["workspace_names"], limited["expires_at"][:10]) == (["Other"], "2100-01-31")
    listed = {key["id"] for key in await run_json(portside, "keys", "list", "--of", "organization")}
    assert listed >= {service["id"], of_all["id"], limited["id"]}

    assert personal["short_key"] in await portside("keys", "list", "--of", "user")
    await portside("keys", "revoke", limited["id"], "--of", "organization")
    await portside("keys", "revoke", personal["id"])
    assert "404" in await portside("keys", "revoke", limited["id"], "--of", "organization", code=1)
    assert "does not accept this key" in await portside("account", "show", key=personal["key"], code=1)
    assert "invalid time" in await portside(*create, "--expires", "soon", code=1)
    assert "expires_at: must be in the future" in await portside(*create, "--expires", "2001-01-31", code=1)


async def test_sessions_are_listed_and_ended(portside: Portside) -> None:
    await portside("members", "add", "dev@example.com", "--password", stdin=PASSWORD)
    await portside("login", "--email", "dev@example.com", key=None, stdin=PASSWORD)
    (own,) = await run_json(portside, "sessions", "list", key=None)
    assert (own["method"], own["kind"], own["is_current"]) == ("password", "bearer", True)
    assert "dev@example.com" in await portside("sessions", "list", "--of", "organization")
    assert "404" in await portside("sessions", "end", own["id"], code=1)
    await portside("sessions", "end", own["id"], "--of", "organization")

    assert await run_json(portside, "sessions", "list", "--of", "organization") == []
