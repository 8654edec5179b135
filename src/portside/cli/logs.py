"""`portside logs`: what a deployment's build and its server say."""

import time
from datetime import UTC, datetime
from typing import Any

import click

from portside.cli.client import Platform, connection_options
from portside.cli.finding import find
from portside.cli.output import say

FOLLOW_POLL_S = 1.0
# While a revision is in one of these states, what it has to say is in its build log.
BUILDING = frozenset({"CREATING", "QUEUED", "AWAITING_BUILD", "BUILDING", "BUILD_FAILED", "CREATE_FAILED"})


@click.command()
@click.argument("deployment")
@click.option(
    "--type", "kind", type=click.Choice(["deploy", "build"]), help="Which log. [default: the one that matters]"
)
@click.option("--build", "kind", flag_value="build", help="The same as --type build.")
@click.option("--revision", help="Revision id. [default: the newest]")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is new.")
@connection_options
def logs(platform: Platform, deployment: str, kind: str | None, revision: str | None, **options: Any) -> None:
    """Print the newest log lines of a DEPLOYMENT (name or id).

    Without --type these are those of its build until that has ended well, and those of its server from then on.
    """
    found = find(platform, deployment)
    log = _Log(platform, found["id"], revision or found["latest_revision_id"])
    shown = kind or log.kind()
    offset = log.show_newest(shown, options["limit"])
    if offset is None:
        say(f"the {shown} log of this revision is empty")
    while options["follow"]:
        time.sleep(FOLLOW_POLL_S)
        wanted = kind or log.kind()
        offset = log.show_new(shown, offset)
        if wanted != shown:
            shown, offset = wanted, None


class _Log:
    """The logs of one revision."""

    def __init__(self, platform: Platform, deployment_id: str, revision_id: str) -> None:
        self._platform, self._path = platform, f"/v2/deployments/{deployment_id}/revisions/{revision_id}"

    def kind(self) -> str:
        """Which log has something to say."""
        return "build" if self._platform.call("GET", self._path)["status"] in BUILDING else "deploy"

    def show_newest(self, kind: str, limit: int) -> str | None:
        """Print the last lines, oldest first, and return where to go on."""
        newest = self._platform.call("GET", f"{self._path}/logs", type=kind, order="desc", limit=limit)["logs"]
        for entry in reversed(newest):
            click.echo(_line(entry))
        return newest[0]["id"] if newest else None

    def show_new(self, kind: str, offset: str | None) -> str | None:
        """Print what came after an offset, and return where to go on."""
        answer = self._platform.call("GET", f"{self._path}/logs", type=kind, order="asc", limit=1000, offset=offset)
        for entry in answer["logs"]:
            click.echo(_line(entry))
        return answer["next_offset"] or offset


def _line(entry: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(float(entry["timestamp"]) / 1000, UTC)
    return f"{moment:%H:%M:%S} {entry['level'].lower():<7} {entry['message']}"
