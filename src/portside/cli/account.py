"""`portside account`: your account and password. `portside keys`: API keys, and the key that encrypts secrets."""

import contextlib
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from portside.cli.client import Platform, ask_secret, connect, connection_options, read_address
from portside.cli.output import CommandGroup, json_option, show_json, show_table, show_text
from portside.cli.revisions import find_deployment
from portside.cli.service import read_environment
from portside.kernel import interruption
from portside.kernel.errors import UserMistake

if TYPE_CHECKING:
    from portside.platform.home import Home
    from portside.platform.settings import PlatformSettings


F = TypeVar("F", bound=Callable[..., Any])
_KEY_PATHS = {"workspace": "/api-key", "user": "/api-key/current", "organization": "/orgs/current/service-keys"}
_SPAN = re.compile(r"([1-9][0-9]{0,3})([hdw])")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


@click.group(cls=CommandGroup)
def account() -> None:
    """Show your account, set your password."""


@account.command()
@json_option
@connection_options
def show(platform: Platform, *, as_json: bool) -> None:
    """Show the user, workspace and permissions of the key or login."""
    identity = platform.call("GET", "/auth")
    if as_json:
        show_json(identity)
        return

    rows = (
        ("user", identity["user_email"]),
        ("key", identity["short_key"]),
        ("workspace", identity["workspace_name"]),
        ("may", ", ".join(identity["permissions"])),
    )

    for label, value in rows:
        show_text(f"{label:<11}{value or '-'}")


@account.command()
@click.option("--first", is_flag=True, help="You have no password yet; do not ask for the current one.")
@connection_options
def password(platform: Platform, *, first: bool) -> None:
    """Set your password; prompts for the current and the new one, or reads both from standard input, one per line."""
    current = None if first else ask_secret("Current password")
    platform.call_with_password("PUT", "/users/me/password", {"current": current, "new": ask_secret("New password")})
    show_text("the password is set; your other logins are ended")


@click.group(cls=CommandGroup)
def keys() -> None:
    """List, create and revoke API keys; rotate the master key."""


def _owner_option(command: F) -> F:
    """Add the option that selects the owner of the keys."""
    owner = click.Choice(list(_KEY_PATHS))
    return click.option("--of", "owner", type=owner, help="Keys of the workspace, your own, or the organization's.")(
        command
    )


@keys.command("list")
@_owner_option
@json_option
@connection_options
def list_keys(platform: Platform, owner: str | None, *, as_json: bool) -> None:
    """List keys in short form, newest first: the workspace's service keys and your own."""
    api_keys = platform.call("GET", _KEY_PATHS[owner or "workspace"])
    if owner is None and platform.call("GET", "/auth")["user_id"] is not None:
        api_keys += platform.call("GET", _KEY_PATHS["user"])

    if as_json:
        show_json(api_keys)
        return

    rows = [
        (
            key["short_key"],
            key["description"],
            ", ".join(key["workspace_names"]),
            key["created_at"][:19],
            (key["last_used_at"] or "never")[:19],
            (key["expires_at"] or "never")[:19],
            key["used_by"] or "",
            key["created_by"] or "unknown",
            key["id"],
        )
        for key in api_keys
    ]

    show_table(
        ("KEY", "DESCRIPTION", "WORKSPACES", "CREATED", "LAST USED", "EXPIRES", "USED BY", "CREATED BY", "ID"), rows
    )


@keys.command("create")
@click.option("--description", default="Made on the command line", show_default=True, help="What the key is for.")
@_owner_option
@click.option(
    "--permission",
    "permissions",
    multiple=True,
    help="Permission such as deployments:read; repeat for more. [default: all]",
)
@click.option("--role", "role_id", help="Give the key the permissions of a workspace role, such as Viewer.")
@click.option(
    "--org-role", "org_role_id", help="Give the key the permissions of an organization role; with --of organization."
)
@click.option(
    "--only", multiple=True, help="Workspace that an organization's key may use; repeat for more. [default: all]"
)
@click.option("--read-only", is_flag=True, help="Keep only the read permissions.")
@click.option(
    "--expires", help="When the key expires: after 12h, 30d or 8w, or at a time such as 2030-01-31T12:00:00Z."
)
@json_option
@connection_options
def create_key(platform: Platform, owner: str | None, *, as_json: bool, **options: Any) -> None:
    """Create a key and print it; it is not shown again. Without --of it is a service key of the workspace."""
    workspace_ids = [platform.find_workspace(workspace)["id"] for workspace in options.pop("only")]
    expires = options.pop("expires")
    expires_at = None if expires is None else parse_expiry(expires, datetime.now(UTC)).isoformat()

    body = {
        **options,
        "permissions": list(options["permissions"]) or None,
        "workspaces": workspace_ids or None,
        "expires_at": expires_at,
    }
    key = platform.call("POST", _KEY_PATHS[owner or "workspace"], body=body)
    if as_json:
        show_json(key)
    else:
        show_text(key["key"])


def parse_expiry(text: str, now: datetime) -> datetime:
    """Return the time of a duration such as 30d from now, or of an ISO 8601 time, by default in UTC.

    Raises UserMistake.
    """
    if (span := _SPAN.fullmatch(text)) is not None:
        return now + timedelta(**{_UNITS[span[2]]: int(span[1])})

    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UserMistake(f"invalid time {text}: use 12h, 30d or 8w, or a time such as 2030-01-31T12:00:00Z") from None

    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


@keys.command("revoke")
@click.argument("key_id")
@_owner_option
@click.option("--force", is_flag=True, help="Revoke even a key that a part of the platform uses.")
@connection_options
def revoke_key(platform: Platform, key_id: str, owner: str | None, *, force: bool) -> None:
    """Revoke the key with this id; without --of, one of the workspace's or your own."""
    if owner is None:
        workspace_keys = platform.call("GET", _KEY_PATHS["workspace"])
        owner = "workspace" if any(key["id"] == key_id for key in workspace_keys) else "user"

    platform.call("DELETE", f"{_KEY_PATHS[owner]}/{key_id}", force="true" if force else None)
    show_text("revoked")


@keys.command()
@click.argument("key_id")
@connection_options
def rotate(platform: Platform, key_id: str) -> None:
    """Replace a key that a part of the platform uses, named by its id.

    A deployment's servers change to the new key one by one; the old one works for another hour. The platform's own
    listener gets its new key within seconds.
    """
    api_keys = platform.call("GET", _KEY_PATHS["workspace"])
    used_by = next((key["used_by"] for key in api_keys if key["id"] == key_id), None)
    if used_by is None:
        raise UserMistake(
            f"no part of the platform uses a key {key_id} of this workspace; replace your own keys with "
            "`keys create` and `keys revoke`"
        )

    kind, _, name = used_by.partition(" ")
    if kind == "deployment":
        deployment = find_deployment(platform, name)
        platform.call("POST", f"/v2/deployments/{deployment['id']}/service-key/rotate")
    else:
        platform.call("DELETE", f"{_KEY_PATHS['workspace']}/{key_id}", force="true")

    show_text(f"{used_by} gets a new key")


@keys.command("rotate-master")
@click.option("--home", help="Folder of the platform. [default: PORTSIDE_HOME or ~/.portside]")
@click.option("--url", envvar="PORTSIDE_URL", help="Address of the running platform. [default: its port here]")
def rotate_master(home: str | None, url: str | None) -> None:
    """Re-encrypt all secrets with a new master key, while the platform runs or is stopped.

    A running platform removes the older key ten minutes later. If it is interrupted, its next start continues: the key
    file has both keys until the end, so nothing is lost. The older key stays in master-key.previous.
    """
    from portside.kernel.settings import load_settings
    from portside.platform.home import Home
    from portside.platform.maintenance import check_home
    from portside.platform.settings import PlatformSettings

    settings = load_settings(PlatformSettings, read_environment(None, home), home=home)
    platform_home = Home(settings.home_path)
    check_home(platform_home)

    if platform_home.is_in_use:
        platform = connect(url or read_address(str(platform_home.path)), None, str(platform_home.path))
        with contextlib.closing(platform):
            state = platform.call("POST", "/system/master-key/rotate")

        until = state["older_key_until"][:19]
        show_text(f"re-encrypted {state['reencrypted']} values; the older key is removed after {until}Z")
    else:
        count = _rotate_stopped(platform_home, settings)
        show_text(f"re-encrypted {count} values with the new master key in {platform_home.master_key}")


def _rotate_stopped(home: "Home", settings: "PlatformSettings") -> int:
    """Rotate the master key of a platform that does not run, and return the number of values that were re-encrypted."""
    from portside.platform.backups import build_embedded
    from portside.platform.maintenance import rotate_master_key

    home.lock()
    embedded = None if settings.database_url else build_embedded(settings)
    try:
        database_url = settings.database_url or (embedded.acquire() if embedded else "")
        return interruption.run(rotate_master_key(home, database_url))
    finally:
        if embedded is not None:
            embedded.release()
