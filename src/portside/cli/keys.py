"""`portside keys`: the API keys of the workspace, and the master key that seals secrets."""

import asyncio
import os

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import json_option, show_json, show_table


@click.group()
def keys() -> None:
    """List, make and revoke API keys; change the master key."""


@keys.command("list")
@json_option
@connection_options
def list_(platform: Platform, *, as_json: bool) -> None:
    """List the workspace's service keys and one's own keys, by the part of them that may be shown."""
    found = platform.call("GET", "/api-key")
    if platform.call("GET", "/auth")["user_id"] is not None:
        found += platform.call("GET", "/api-key/current")
    if as_json:
        show_json(found)
        return
    rows = [
        (k["short_key"], k["description"], k["created_at"][:19], k["last_used_at"] or "never", k["id"]) for k in found
    ]
    show_table(("KEY", "DESCRIPTION", "CREATED", "LAST USED", "ID"), rows)


@keys.command()
@click.option("--description", default="Made on the command line", show_default=True)
@click.option("--permission", "permissions", multiple=True, help="Like deployments:read; repeat. [default: everything]")
@json_option
@connection_options
def create(platform: Platform, description: str, permissions: tuple[str, ...], *, as_json: bool) -> None:
    """Make a key and print it; it is not shown again."""
    body = {"description": description, "permissions": list(permissions) or None}
    made = platform.call("POST", "/api-key", body=body)
    if as_json:
        show_json(made)
    else:
        click.echo(made["key"])


@keys.command()
@click.argument("key_id")
@connection_options
def revoke(platform: Platform, key_id: str) -> None:
    """Revoke the key with this id."""
    own = {key["id"] for key in platform.call("GET", "/api-key")}
    platform.call("DELETE", f"/api-key/{key_id}" if key_id in own else f"/api-key/current/{key_id}")
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
