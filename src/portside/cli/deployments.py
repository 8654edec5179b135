"""Commands for existing deployments: `portside deployments`, `logs`, `rollback` and `secrets`."""

import re
import time
from datetime import UTC, datetime
from typing import Any

import click

from portside.cli.client import Platform, ask_value, connection_options
from portside.cli.output import CommandGroup, confirm, indented, json_option, say, show_json, show_table, show_text
from portside.cli.revisions import (
    ACCESS_MODES,
    PIN_HOURS,
    agent_access_of,
    call_with_retry,
    describe_access,
    describe_pins,
    find,
    reason_in_brief,
    revisions_of,
    show_revisions,
    wait_for_revision,
    with_shown_status,
)
from portside.kernel.errors import UserMistake

_PAGE = 100


@click.group(cls=CommandGroup)
def deployments() -> None:
    """List, show, scale and delete deployments."""


@deployments.command("list")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100), help="Number of entries.")
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0), help="Number of entries to skip.")
@json_option
@connection_options
def list_(platform: Platform, limit: int, offset: int, *, as_json: bool) -> None:
    """List the deployments."""
    found = platform.call("GET", "/v2/deployments", limit=limit, offset=offset)["resources"]
    if as_json:
        show_json(found)
        return

    shown = [with_shown_status(platform, deployment) for deployment in found]
    rows = [
        (d["name"], d["status"], d["source_config"].get("custom_url"), d["server_version"], d["id"], reason_in_brief(d))
        for d in shown
    ]

    show_table(("NAME", "STATUS", "URL", "VERSION", "ID", "REASON"), rows)
    if more := _count_from(platform, offset + len(found)) if len(found) == limit else 0:
        noun = "deployment" if more == 1 else "deployments"
        say(f"{more} more {noun}; continue with --offset {offset + limit}")


def _count_from(platform: Platform, offset: int) -> int:
    """Count the deployments from an offset on."""
    count = 0
    while page := platform.call("GET", "/v2/deployments", limit=_PAGE, offset=offset + count)["resources"]:
        count += len(page)

    return count


@deployments.command()
@click.argument("deployment")
@json_option
@connection_options
def show(platform: Platform, deployment: str, *, as_json: bool) -> None:
    """Show a DEPLOYMENT (name or id), its newest revisions, and how many threads use the code of each."""
    found = find(platform, deployment)
    newest = revisions_of(platform, found, limit=10)
    usage = usage_of(platform, found)
    threads = usage["threads_by_revision"]

    # Threads may continue with revisions that are older than those.
    path = f"/v2/deployments/{found['id']}/revisions"
    older = (threads or {}).keys() - {revision["id"] for revision in newest}

    newest += sorted((platform.call("GET", f"{path}/{each}") for each in older), key=_created_at, reverse=True)
    if as_json:
        show_json({**found, "revisions": newest, "metrics": usage})
        return

    url = found["source_config"].get("custom_url")
    status = with_shown_status(platform, found)["status"]
    row = (
        found["name"],
        status,
        url,
        found["server_version"],
        describe_access(found),
        describe_pins(found),
        found["id"],
    )

    show_table(("NAME", "STATUS", "URL", "VERSION", "AGENT ACCESS", "PIN THREADS", "ID"), [row])
    if found.get("status_message"):
        show_text(f"\n{found['status_message']}")

    if newest and newest[0]["status"].endswith("_FAILED"):
        reason = newest[0]["status_message"] or "see its log"
        show_text(f"\nthe newest revision failed with {newest[0]['status']}: {reason}")

    show_text()
    show_usage(usage)
    show_revisions(found, newest, threads)


def _created_at(revision: dict[str, Any]) -> str:
    return str(revision["created_at"])


@deployments.command()
@click.argument("deployment")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100), help="Number of entries.")
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0), help="Number of entries to skip.")
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


@deployments.command()
@click.argument("deployment")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--delete-tracing-project", is_flag=True, help="Also delete its traces.")
@connection_options
def delete(platform: Platform, deployment: str, *, yes: bool, delete_tracing_project: bool) -> None:
    """Delete a DEPLOYMENT (name or id) with its database."""
    found = find(platform, deployment)
    if not yes:
        confirm(f"Delete {found['name']} and all data of its agent?")

    wanted = "true" if delete_tracing_project else None
    platform.call("DELETE", f"/v2/deployments/{found['id']}", delete_tracing_project=wanted)
    show_text(f"{found['name']} is being deleted")


FOLLOW_POLL_S = 1.0
# In these states a revision's news is in its build log.
BUILDING = frozenset({"CREATING", "QUEUED", "AWAITING_BUILD", "BUILDING", "BUILD_FAILED", "CREATE_FAILED"})


@deployments.command()
@click.argument("deployment")
@click.option(
    "--type",
    "kind",
    type=click.Choice(["deploy", "build"]),
    help="Which log. [default: build until the build has succeeded, then deploy]",
)
@click.option("--build", "kind", flag_value="build", help="The same as --type build.")
@click.option("--revision", help="Revision id. [default: the newest]")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000), help="Number of lines.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines.")
@connection_options
def logs(platform: Platform, deployment: str, kind: str | None, revision: str | None, **options: Any) -> None:
    """Print the newest log lines of a DEPLOYMENT (name or id).

    Without --type this is the build log until the build has succeeded, and the server's log from then on.
    """
    found = find(platform, deployment)
    log = RevisionLogs(platform, found["id"], revision or found["latest_revision_id"])

    shown = kind or log.kind()
    offset = log.show_newest(shown, options["limit"])
    if offset is None:
        say(f"the {shown} log of this revision is empty")

    while options["follow"]:
        time.sleep(FOLLOW_POLL_S)
        wanted = kind or log.kind()
        offset = log.show_new(shown, offset)

        if wanted != shown:
            shown = wanted
            offset = None


class RevisionLogs:
    """The logs of one revision, which can be followed across a restart of the platform."""

    def __init__(self, platform: Platform, deployment_id: str, revision_id: str) -> None:
        self._platform = platform
        self._path = f"/v2/deployments/{deployment_id}/revisions/{revision_id}"

    def kind(self) -> str:
        """Return the log that has the revision's news."""
        return "build" if call_with_retry(self._platform, self._path)["status"] in BUILDING else "deploy"

    def show_newest(self, kind: str, limit: int) -> str | None:
        """Print the newest lines, oldest first, and return the offset after them."""
        newest = self._platform.call("GET", f"{self._path}/logs", type=kind, order="desc", limit=limit)["logs"]
        for entry in reversed(newest):
            show_text(_log_line(entry))

        return newest[0]["id"] if newest else None

    def show_new(self, kind: str, offset: str | None) -> str | None:
        """Print the lines after an offset, and return the offset after them."""
        path = f"{self._path}/logs"
        response = call_with_retry(self._platform, path, type=kind, order="asc", limit=1000, offset=offset)
        for entry in response["logs"]:
            show_text(_log_line(entry))

        return response["next_offset"] or offset


def _log_line(entry: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(float(entry["timestamp"]) / 1000, UTC)
    return f"{moment:%H:%M:%S} {entry['level'].lower():<7} {indented(entry['message'])}"


@click.command()
@click.argument("deployment")
@click.argument("revision", required=False)
@click.option("--wait/--no-wait", default=True, help="Follow the revision until it is deployed.")
@json_option
@connection_options
def rollback(platform: Platform, deployment: str, revision: str | None, *, wait: bool, as_json: bool) -> None:
    """Serve an earlier REVISION of a DEPLOYMENT again, by default the one before the active one.

    This creates a new revision with the old one's code, secrets and resources. It reuses the old build, unless the
    platform was upgraded since.
    """
    found = find(platform, deployment)
    target = revision or _previous_revision(platform, found)
    response = platform.call("POST", f"/v2/deployments/{found['id']}/revisions/{target}/redeploy")
    say(f"revision {target} is deployed again as {response['latest_revision_id']}")

    if wait:
        wait_for_revision(platform, found, response["latest_revision_id"])
        response = platform.call("GET", f"/v2/deployments/{found['id']}")

    if as_json:
        show_json(response)
    else:
        show_text(response["source_config"]["custom_url"] or response["id"])


def _previous_revision(platform: Platform, deployment: dict[str, Any]) -> str:
    """Return the last revision that was deployed before the active one. Raises UserMistake."""
    is_earlier = deployment["active_revision_id"] is None
    offset = 0
    while page := revisions_of(platform, deployment, limit=_PAGE, offset=offset):
        for revision in page:
            if is_earlier and revision["status"] == "DEPLOYED":
                return str(revision["id"])
            is_earlier = is_earlier or revision["id"] == deployment["active_revision_id"]

        offset += len(page)

    raise UserMistake(f"{deployment['name']} has no earlier revision that was deployed")


REPLICAS = click.IntRange(1, 1000)


@deployments.command()
@click.argument("deployment")
@click.option("--min", "min_scale", type=REPLICAS, help="Minimum number of replicas.")
@click.option("--max", "max_scale", type=REPLICAS, help="Maximum number of replicas.")
@click.option("--queue-min", "queue_min_scale", type=REPLICAS, help="Minimum number of replicas that execute runs.")
@click.option("--queue-max", "queue_max_scale", type=REPLICAS, help="Maximum number of replicas that execute runs.")
@json_option
@connection_options
def scale(platform: Platform, deployment: str, *, as_json: bool, **limits: int | None) -> None:
    """Set the limits on replicas of a DEPLOYMENT (name or id); omitted limits are reset to its revision's."""
    found = find(platform, deployment)
    made = platform.call("PUT", f"/v2/deployments/{found['id']}/scale", body=limits)
    if as_json:
        show_json(made)
        return

    rows = [(name, "the revision's" if number is None else number) for name, number in made.items()]
    show_table(("LIMIT", "REPLICAS"), rows)


@deployments.command()
@click.argument("deployment")
@click.argument("mode", required=False, type=click.Choice(ACCESS_MODES))
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Role whose members may call; repeat for more.")
@json_option
@connection_options
def access(platform: Platform, deployment: str, mode: str | None, roles: tuple[str, ...], *, as_json: bool) -> None:
    """Show or set who may call the agent of a DEPLOYMENT (name or id) with the platform's keys.

    MODE is workspace (any key of the workspace), permission (keys and members with deployments:call), roles (members
    with a --role), or none (nobody, unless the project's own authentication allows it). A change takes effect within
    ten seconds, without a new revision.
    """
    found = find(platform, deployment)
    if change := agent_access_of(mode, roles):
        found = platform.call("PATCH", f"/v2/deployments/{found['id']}", body=change)

    if as_json:
        show_json(found["agent_access"])
    else:
        show_text(describe_access(found))


_SPAN = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SPAN_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@deployments.command("sleep")
@click.argument("deployment")
@click.argument("after", required=False)
@json_option
@connection_options
def sleep(platform: Platform, deployment: str, after: str | None, *, as_json: bool) -> None:
    """Show or set how long a DEPLOYMENT (name or id) may be idle, without requests and runs, before its agent sleeps.

    AFTER is a time such as 90s, 15m or 2h, or never. An agent that sleeps has no process; the next request, run or cron
    wakes it. A change makes no new revision.
    """
    found = find(platform, deployment)
    if after is not None:
        path = f"/v2/deployments/{found['id']}"
        found = platform.call("PATCH", path, body={"sleep_after_s": _seconds_of(after)})

    if as_json:
        show_json({"sleep_after_s": found["sleep_after_s"], "is_asleep": found["is_asleep"]})
        return

    after_s = found["sleep_after_s"]
    unit = next((name for name, length in reversed(_SPAN_S.items()) if after_s and after_s % length == 0), "s")
    when = f"after {after_s // _SPAN_S[unit]}{unit}" if after_s else "never"
    show_text(f"sleeps {when}{', asleep now' if found['is_asleep'] else ''}")


def _seconds_of(text: str) -> int:
    if text == "never":
        return 0
    if (span := _SPAN.fullmatch(text)) is None:
        raise UserMistake(f"invalid time {text}: use 90s, 15m, 2h, or never")

    return int(span[1]) * _SPAN_S[span[2]]


@deployments.command("pin-threads")
@click.argument("deployment")
@click.argument("hours", required=False, type=PIN_HOURS)
@json_option
@connection_options
def pin_threads(platform: Platform, deployment: str, hours: float | None, *, as_json: bool) -> None:
    """Show or set for how many HOURS threads of a DEPLOYMENT (name or id) continue with the revision that began them.

    After a new revision is deployed, threads that are interrupted or have runs keep their code for this long; 0 turns
    this off. A change takes effect at once, without a new revision.
    """
    found = find(platform, deployment)
    if hours is not None:
        found = platform.call("PATCH", f"/v2/deployments/{found['id']}", body={"pin_threads": hours})

    if as_json:
        show_json(found["pin_threads"])
    else:
        show_text(describe_pins(found))


@deployments.command()
@click.argument("deployment")
@json_option
@connection_options
def token(platform: Platform, deployment: str, *, as_json: bool) -> None:
    """Print a token that lets you call the agent of a DEPLOYMENT (name or id) for a minute, and nothing else."""
    made = platform.call("POST", f"/v2/deployments/{find(platform, deployment)['id']}/token")
    if as_json:
        show_json(made)
    else:
        show_text(made["access_token"])


def usage_of(platform: Platform, deployment: dict[str, Any]) -> dict[str, Any]:
    """Return the latest metrics of a deployment."""
    return dict(platform.call("GET", f"/v2/deployments/{deployment['id']}/metrics"))


def show_usage(usage: dict[str, Any]) -> None:
    """Print the metrics of a deployment, if there are any yet."""
    if usage["measured_at"] is None:
        return

    names = ("replicas", "queue_replicas", "cpu", "memory_mb", "restarts", "pending_runs", "active_runs")
    titles = ("REPLICAS", "QUEUE", "CPU", "MEMORY MB", "RESTARTS", "PENDING RUNS", "ACTIVE RUNS")
    show_table(titles, [tuple("-" if usage[name] is None else usage[name] for name in names)])

    if usage["problem"]:
        show_text(usage["problem"], err=True)

    show_text()


_wait_option = click.option("--wait/--no-wait", default=True, help="Follow the revision until it is deployed.")


@click.group(cls=CommandGroup)
def secrets() -> None:
    """List, set and remove the secrets of a deployment."""


@secrets.command("list")
@click.argument("deployment")
@json_option
@connection_options
def list_secrets(platform: Platform, deployment: str, *, as_json: bool) -> None:
    """List the names of the secrets of a DEPLOYMENT (name or id)."""
    found = find(platform, deployment)
    if as_json:
        show_json(_secret_names(found))
        return

    for name in _secret_names(found):
        show_text(name)

    if not found["secrets"]:
        say(f"{found['name']} has no secrets")


@secrets.command("set")
@click.argument("deployment")
@click.argument("name")
@_wait_option
@json_option
@connection_options
def set_secret(platform: Platform, deployment: str, name: str, *, wait: bool, as_json: bool) -> None:
    """Set the secret NAME of a DEPLOYMENT (name or id), which makes a new revision.

    Prompts for the value, or reads it from standard input. The other secrets stay.
    """
    found = find(platform, deployment)
    changes = {"set": [{"name": name, "value": ask_value(name)}]}
    _change_secrets(platform, found, changes, wait=wait, as_json=as_json)


@secrets.command()
@click.argument("deployment")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_wait_option
@json_option
@connection_options
def unset(platform: Platform, deployment: str, names: tuple[str, ...], *, wait: bool, as_json: bool) -> None:
    """Remove secrets of a DEPLOYMENT (name or id), which makes a new revision."""
    found = find(platform, deployment)
    if missing := [name for name in names if name not in _secret_names(found)]:
        raise UserMistake(f"{found['name']} has no secret {missing[0]}; 'portside secrets list' shows its secrets")

    _change_secrets(platform, found, {"unset": list(names)}, wait=wait, as_json=as_json)


def _secret_names(deployment: dict[str, Any]) -> list[str]:
    return [secret["name"] for secret in deployment["secrets"]]


def _change_secrets(
    platform: Platform, found: dict[str, Any], changes: dict[str, Any], *, wait: bool, as_json: bool
) -> None:
    # The platform applies the changes to what is there then: two commands at the same moment lose nothing.
    response = platform.call("PATCH", f"/v2/deployments/{found['id']}", body={"secret_changes": changes})
    revision = response["latest_revision_id"]
    if revision is not None:
        say(f"revision {revision} of {found['name']} has the new secrets")
        if wait:
            wait_for_revision(platform, found, revision)

    if as_json:
        show_json({"deployment_id": found["id"], "revision_id": revision, "secrets": _secret_names(response)})
