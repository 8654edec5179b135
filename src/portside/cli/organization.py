"""`portside organization`: the organization that the key or login belongs to."""

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import json_option, show_json, show_table

PATH = "/orgs/current"


@click.group()
def organization() -> None:
    """Show and rename the organization."""


@organization.command()
@json_option
@connection_options
def show(platform: Platform, *, as_json: bool) -> None:
    """Show the organization."""
    found = platform.call("GET", PATH)
    if as_json:
        show_json(found)
        return
    show_table(("NAME", "CREATED", "ID"), [(found["display_name"], found["created_at"][:19], found["id"])])


@organization.command()
@click.argument("name")
@connection_options
def rename(platform: Platform, name: str) -> None:
    """Give the organization another NAME."""
    platform.call("PATCH", PATH, body={"display_name": name})
    click.echo(f"the organization is now {name}")
