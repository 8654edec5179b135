"""`portside keys`: API keys of workspaces, users and the organization, and the master key that seals secrets."""

import asyncio
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import json_option, show_json, show_table
from portside.kernel.errors import UserMistake

F = TypeVar("F", bound=Callable[..., Any])
PATHS = {"workspace": "/api-key", "user": "/api-key/current", "organization": "/orgs/current/service-keys"}
_SPAN, _UNITS = re.compile(r"([1-9][0-9]{0,3})([hdw])"), {"h": "hours", "d": "days", "w": "weeks"}


@click.group()
def keys() -> None:
    """List, make and revoke API keys; change the master key."""


def whose_option(command: F) -> F:
    """Add the option that says which keys are meant."""
    whose = click.Choice(list(PATHS))
    return click.option("--of", "whose", type=whose, help="Keys of the workspace, your own, or the organization's.")(
        command
    )


@keys.command("list")
@whose_option
@json_option
@connection_options
def list_(platform: Platform, whose: str | None, *, as_json: bool) -> None:
    """List keys, newest first, by the part of them that may be shown: the workspace's service keys and one's own."""
    found = platform.call("GET", PATHS[whose or "workspace"])
    if whose is None and platform.call("GET", "/auth")["user_id"] is not None:
        found += platform.call("GET", PATHS["user"])
    if as_json:
        show_json(found)
        return
    rows = [
        (k["short_key"], k["description"], ", ".join(k["workspace_names"]), k["created_at"][:19],
         (k["last_used_at"] or "never")[:19], (k["expires_at"] or "never")[:19], k["id"])
        for k in found
    ]  # fmt: skip
    show_table(("KEY", "DESCRIPTION", "WORKSPACES", "CREATED", "LAST USED", "EXPIRES", "ID"), rows)


@keys.command()
@click.option("--description", default="Made on the command line", show_default=True)
@whose_option
@click.option("--permission", "permissions", multiple=True, help="Like deployments:read; repeat. [default: everything]")
@click.option("--role", "role_id", help="What the key may do, by a role in a workspace, like Viewer.")
@click.option("--org-role", "org_role_id", help="What it may do by a role in the organization; with --of organization.")
@click.option(
    "--only", multiple=True, help="Workspace that a key of the organization may enter; repeat. [default: all]"
)
@click.option("--read-only", is_flag=True, help="Leave of that what reads.")
@click.option("--expires", help="When the key ends: after 12h, 30d or 8w, or at a time like 2030-01-31T12:00:00Z.")
@json_option
@connection_options
def create(platform: Platform, whose: str | None, *, as_json: bool, **given: Any) -> None:
    """Make a key and print it; it is not shown again. Without --of it is a service key of the workspace."""
    only, expires = given.pop("only"), given.pop("expires")
    body = {
        **given,
        "permissions": list(given["permissions"]) or None,
        "workspaces": [platform.find_workspace(named)["id"] for named in only] or None,
        "expires_at": None if expires is None else moment(expires, datetime.now(UTC)).isoformat(),
    }
    made = platform.call("POST", PATHS[whose or "workspace"], body=body)
    if as_json:
        show_json(made)
    else:
        click.echo(made["key"])


def moment(text: str, now: datetime) -> datetime:
    """Return the time that is so far off, or that is written out; in UTC unless it says otherwise.

    Raises UserMistake.
    """
    if (far := _SPAN.fullmatch(text)) is not None:
        return now + timedelta(**{_UNITS[far[2]]: int(far[1])})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UserMistake(f"{text} is no time; write 12h, 30d or 8w, or a time like 2030-01-31T12:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@keys.command()
@click.argument("key_id")
@whose_option
@connection_options
def revoke(platform: Platform, key_id: str, whose: str | None) -> None:
    """Revoke the key with this id; without --of, one of the workspace's or one's own."""
    if whose is None:
        is_of_workspace = key_id in {key["id"] for key in platform.call("GET", PATHS["workspace"])}
        whose = "workspace" if is_of_workspace else "user"
    platform.call("DELETE", f"{PATHS[whose]}/{key_id}")
    click.echo("revoked")


@keys.command("rotate-master")
@click.option("--home", help="Folder of the platform. [default: PORTSIDE_HOME or ~/.portside]")
def rotate_master(home: str | None) -> None:
    """Seal every secret with a new master key, while the platform is stopped.

    Stopped in the middle nothing is lost: the key file holds both keys until the end, and the same command goes on.
    """
    from portside.kernel.embedded import EmbeddedPostgres
    from portside.kernel.settings import load_settings
    from portside.platform.home import Home
    from portside.platform.rotation import check_home, rotate_master_key
    from portside.platform.settings import PlatformSettings

    settings = load_settings(PlatformSettings, os.environ, home=home)
    place = Home(settings.home_path)
    check_home(place)
    place.lock()
    embedded = None if settings.database_url else EmbeddedPostgres(place.path)
    try:
        database_url = settings.database_url or (embedded.acquire() if embedded else "")
        count = asyncio.run(rotate_master_key(place, database_url))
    finally:
        if embedded is not None:
            embedded.release()
    click.echo(f"{count} values are sealed with the new master key in {place.master_key}; make a backup of it")
