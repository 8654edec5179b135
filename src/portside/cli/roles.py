"""`portside roles`: what members and keys may be."""

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import json_option, show_json, show_table


@click.command()
@json_option
@connection_options
def roles(platform: Platform, *, as_json: bool) -> None:
    """List the roles of the organization and of workspaces; --json tells all that each permits."""
    found = platform.call("GET", "/orgs/current/roles")
    if as_json:
        show_json(found)
        return
    rows = [(role["display_name"], role["access_scope"], role["name"], len(role["permissions"])) for role in found]
    show_table(("ROLE", "OF", "CODE", "PERMISSIONS"), rows)
