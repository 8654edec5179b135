"""`portside rollback`: an earlier revision serves again."""

from typing import Any

import click

from portside.cli.client import Platform, connection_options
from portside.cli.finding import find, revisions_of
from portside.cli.output import json_option, say, show_json
from portside.kernel.errors import UserMistake

PAGE = 100


@click.command()
@click.argument("deployment")
@click.argument("revision", required=False)
@click.option("--wait/--no-wait", default=True, help="Follow the revision until it is deployed.")
@json_option
@connection_options
def rollback(platform: Platform, deployment: str, revision: str | None, *, wait: bool, as_json: bool) -> None:
    """Let an earlier REVISION of a DEPLOYMENT serve again, by default the one before the one that serves.

    It becomes a new revision with the old one's code, secrets and resources. Nothing is built again, unless the
    platform was upgraded since.
    """
    from portside.cli.following import follow_revision

    found = find(platform, deployment)
    target = revision or _before(platform, found)
    answer = platform.call("POST", f"/v2/deployments/{found['id']}/revisions/{target}/redeploy")
    say(f"revision {target} is deployed again as {answer['latest_revision_id']}")
    if wait:
        follow_revision(platform, found["id"], answer["latest_revision_id"], say=say)
        answer = platform.call("GET", f"/v2/deployments/{found['id']}")
    if as_json:
        show_json(answer)
    else:
        click.echo(answer["source_config"]["custom_url"] or answer["id"])


def _before(platform: Platform, deployment: dict[str, Any]) -> str:
    """Return the last revision that was deployed before the one that serves. Raises UserMistake."""
    is_after, offset = deployment["active_revision_id"] is None, 0
    while page := revisions_of(platform, deployment, limit=PAGE, offset=offset):
        for revision in page:
            if is_after and revision["status"] == "DEPLOYED":
                return str(revision["id"])
            is_after = is_after or revision["id"] == deployment["active_revision_id"]
        offset += len(page)
    raise UserMistake(f"{deployment['name']} has no earlier revision that was deployed")
