"""`portside deployments`: list, show, follow and delete them."""

import click

from portside.cli.client import Platform, connection_options
from portside.cli.finding import find, revisions_of, show_revisions
from portside.cli.logs import logs
from portside.cli.output import json_option, show_json, show_table
from portside.cli.scaling import scale, show_usage, usage_of


@click.group()
def deployments() -> None:
    """List, show, follow and delete deployments."""


@deployments.command("list")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100))
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0))
@json_option
@connection_options
def list_(platform: Platform, limit: int, offset: int, *, as_json: bool) -> None:
    """List the deployments."""
    found = platform.call("GET", "/v2/deployments", limit=limit, offset=offset)["resources"]
    if as_json:
        show_json(found)
        return
    rows = [(d["name"], d["status"], d["source_config"].get("custom_url"), d["id"]) for d in found]
    show_table(("NAME", "STATUS", "URL", "ID"), rows)


@deployments.command()
@click.argument("deployment")
@json_option
@connection_options
def show(platform: Platform, deployment: str, *, as_json: bool) -> None:
    """Show a DEPLOYMENT (name or id) and its newest revisions."""
    found = find(platform, deployment)
    newest = revisions_of(platform, found, limit=10)
    usage = usage_of(platform, found)
    if as_json:
        show_json({**found, "revisions": newest, "metrics": usage})
        return
    url = found["source_config"].get("custom_url")
    show_table(("NAME", "STATUS", "URL", "ID"), [(found["name"], found["status"], url, found["id"])])
    click.echo()
    show_usage(usage)
    show_revisions(found, newest)


@deployments.command()
@click.argument("deployment")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100))
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0))
@json_option
@connection_options
def revisions(platform: Platform, deployment: str, limit: int, offset: int, *, as_json: bool) -> None:
    """List the revisions of a DEPLOYMENT (name or id), newest first."""
    found = find(platform, deployment)
    page = revisions_of(platform, found, limit=limit, offset=offset)
    if as_json:
        show_json(page)
    else:
        show_revisions(found, page)


deployments.add_command(logs)
deployments.add_command(scale)


@deployments.command()
@click.argument("deployment")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--delete-tracing-project", is_flag=True, help="Delete its traces as well.")
@connection_options
def delete(platform: Platform, deployment: str, *, yes: bool, delete_tracing_project: bool) -> None:
    """Delete a DEPLOYMENT (name or id) with its database."""
    found = find(platform, deployment)
    if not yes:
        click.confirm(f"Delete {found['name']} and everything its agent remembers?", abort=True)
    wanted = "true" if delete_tracing_project else None
    platform.call("DELETE", f"/v2/deployments/{found['id']}", delete_tracing_project=wanted)
    click.echo(f"{found['name']} is being deleted")
