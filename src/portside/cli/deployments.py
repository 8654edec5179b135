"""`portside deployments`: list, show, follow and delete them."""

import time
from datetime import UTC, datetime
from typing import Any

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import json_option, show_json, show_table
from portside.kernel.errors import UserMistake

FOLLOW_POLL_S = 1.0


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
    revisions = platform.call("GET", f"/v2/deployments/{found['id']}/revisions", limit=10)["resources"]
    if as_json:
        show_json({**found, "revisions": revisions})
        return
    url = found["source_config"].get("custom_url")
    show_table(("NAME", "STATUS", "URL", "ID"), [(found["name"], found["status"], url, found["id"])])
    click.echo()
    rows = [
        (
            revision["id"],
            revision["status"] + (" (serving)" if revision["id"] == found["active_revision_id"] else ""),
            (revision["source_revision_config"].get("repo_commit_sha") or "")[:12],
            revision["created_at"][:19],
            (revision.get("status_message") or "").split("\n", 1)[0][:80],
        )
        for revision in revisions
    ]
    show_table(("REVISION", "STATUS", "COMMIT", "CREATED", "REASON"), rows)


@deployments.command()
@click.argument("deployment")
@click.option("--type", "kind", type=click.Choice(["deploy", "build"]), default="deploy", show_default=True)
@click.option("--revision", help="Revision id. [default: the newest]")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is new.")
@connection_options
def logs(platform: Platform, deployment: str, kind: str, revision: str | None, **options: Any) -> None:
    """Print the newest log lines of a DEPLOYMENT (name or id)."""
    found = find(platform, deployment)
    revision = revision or found["latest_revision_id"]
    path = f"/v2/deployments/{found['id']}/revisions/{revision}/logs"
    newest = platform.call("GET", path, type=kind, order="desc", limit=options["limit"])["logs"]
    seen = 0
    for entry in reversed(newest):
        click.echo(_line(entry))
        seen = int(entry["id"])
    offset = str(seen) if seen else None
    while options["follow"]:
        time.sleep(FOLLOW_POLL_S)
        answer = platform.call("GET", path, type=kind, order="asc", limit=1000, offset=offset)
        for entry in answer["logs"]:
            click.echo(_line(entry))
        offset = answer["next_offset"] or offset


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


def find(platform: Platform, name_or_id: str) -> dict[str, Any]:
    """Return a deployment by name or id. Raises UserMistake when there is none."""
    found = platform.call("GET", "/v2/deployments", name=name_or_id)["resources"]
    for deployment in found:
        if deployment["name"] == name_or_id:
            return dict(deployment)
    if len(name_or_id) == 36:
        return dict(platform.call("GET", f"/v2/deployments/{name_or_id}"))
    raise UserMistake(f"there is no deployment named {name_or_id}; 'portside deployments list' shows them")


def _line(entry: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(float(entry["timestamp"]) / 1000, UTC)
    return f"{moment:%H:%M:%S} {entry['level'].lower():<7} {entry['message']}"
