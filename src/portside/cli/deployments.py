"""Commands for existing deployments: `portside deployments`, `logs`, `rollback` and `secrets`."""

import re
import time
from datetime import UTC, datetime
from typing import Any

import click

from portside.cli.client import Platform, ask_value, connection_options
from portside.cli.output import CommandGroup, confirm, indent, json_option, say, show_json, show_table, show_text
from portside.cli.revisions import (
    ACCESS_MODES,
    PIN_HOURS,
    add_shown_status,
    build_agent_access,
    call_with_retry,
    describe_access,
    describe_pins,
    find_deployment,
    get_brief_reason,
    list_revisions,
    show_revisions,
    wait_for_revision,
)
from portside.kernel.errors import UserMistake

FOLLOW_POLL_S = 1.0
# In these states a revision's news is in its build log.
BUILDING = frozenset({"CREATING", "QUEUED", "AWAITING_BUILD", "BUILDING", "BUILD_FAILED", "CREATE_FAILED"})
REPLICAS = click.IntRange(1, 1000)
_PAGE = 100
_SPAN = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SPAN_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

_wait_option = click.option("--wait/--no-wait", default=True, help="Follow the revision until it is deployed.")


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
    page = platform.call("GET", "/v2/deployments", limit=limit, offset=offset)["resources"]
    if as_json:
        show_json(page)
        return

    page_with_status = [add_shown_status(platform, deployment) for deployment in page]
    rows = [
        (
            d["name"],
            d["status"],
            d["source_config"].get("custom_url"),
            d["server_version"],
            d["id"],
            get_brief_reason(d),
        )
        for d in page_with_status
    ]

    show_table(("NAME", "STATUS", "URL", "VERSION", "ID", "REASON"), rows)
    more = _count_from(platform, offset + len(page)) if len(page) == limit else 0
    if more:
        noun = "deployment" if more == 1 else "deployments"
        say(f"{more} more {noun}; continue with --offset {offset + limit}")


def _count_from(platform: Platform, offset: int) -> int:
    """Count the deployments from an offset on."""
    count = 0
    while page := platform.call("GET", "/v2/deployments", limit=_PAGE, offset=offset + count)["resources"]:
        count += len(page)

    return count


@deployments.command()
@click.argument("name_or_id", metavar="DEPLOYMENT")
@json_option
@connection_options
def show(platform: Platform, name_or_id: str, *, as_json: bool) -> None:
    """Show a DEPLOYMENT (name or id), its newest revisions, and how many threads use the code of each."""
    deployment = find_deployment(platform, name_or_id)
    newest = list_revisions(platform, deployment, limit=10)
    usage = get_usage(platform, deployment)
    threads = usage["threads_by_revision"]

    # Threads may continue with revisions that are older than those.
    path = f"/v2/deployments/{deployment['id']}/revisions"
    older = (threads or {}).keys() - {revision["id"] for revision in newest}

    newest += sorted(
        (platform.call("GET", f"{path}/{revision_id}") for revision_id in older), key=_created_at, reverse=True
    )
    if as_json:
        show_json({**deployment, "revisions": newest, "metrics": usage})
        return

    url = deployment["source_config"].get("custom_url")
    status = add_shown_status(platform, deployment)["status"]
    row = (
        deployment["name"],
        status,
        url,
        deployment["server_version"],
        describe_access(deployment),
        describe_pins(deployment),
        deployment["id"],
    )

    show_table(("NAME", "STATUS", "URL", "VERSION", "AGENT ACCESS", "PIN THREADS", "ID"), [row])
    if deployment.get("status_message"):
        show_text(f"\n{deployment['status_message']}")

    if newest and newest[0]["status"].endswith("_FAILED"):
        reason = newest[0]["status_message"] or "see its log"
        show_text(f"\nthe newest revision failed with {newest[0]['status']}: {reason}")

    show_text()
    show_usage(usage)
    show_revisions(deployment, newest, threads)


def _created_at(revision: dict[str, Any]) -> str:
    return str(revision["created_at"])


@deployments.command()
@click.argument("name_or_id", metavar="DEPLOYMENT")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100), help="Number of entries.")
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0), help="Number of entries to skip.")
@json_option
@connection_options
def revisions(platform: Platform, name_or_id: str, limit: int, offset: int, *, as_json: bool) -> None:
    """List the revisions of a DEPLOYMENT (name or id), newest first."""
    deployment = find_deployment(platform, name_or_id)
    page = list_revisions(platform, deployment, limit=limit, offset=offset)
    if as_json:
        show_json(page)
    else:
        show_revisions(deployment, page)


@deployments.command()
@click.argument("name_or_id", metavar="DEPLOYMENT")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--delete-tracing-project", is_flag=True, help="Also delete its traces.")
@connection_options
def delete(platform: Platform, name_or_id: str, *, yes: bool, delete_tracing_project: bool) -> None:
    """Delete a DEPLOYMENT (name or id) with its database."""
    deployment = find_deployment(platform, name_or_id)
    if not yes:
        confirm(f"Delete {deployment['name']} and all data of its agent?")

    platform.call(
        "DELETE",
        f"/v2/deployments/{deployment['id']}",
        delete_tracing_project="true" if delete_tracing_project else None,
    )
    show_text(f"{deployment['name']} is being deleted")


@deployments.command()
@click.argument("name_or_id", metavar="DEPLOYMENT")
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
def logs(platform: Platform, name_or_id: str, kind: str | None, revision: str | None, **options: Any) -> None:
    """Print the newest log lines of a DEPLOYMENT (name or id).

    Without --type this is the build log until the build has succeeded, and the server's log from then on.
    """
    deployment = find_deployment(platform, name_or_id)
    log = RevisionLogs(platform, deployment["id"], revision or deployment["latest_revision_id"])

    current_kind = kind or log.kind()
    offset = log.show_newest(current_kind, options["limit"])
    if offset is None:
        say(f"the {current_kind} log of this revision is empty")

    while options["follow"]:
        time.sleep(FOLLOW_POLL_S)
        next_kind = kind or log.kind()
        offset = log.show_new(current_kind, offset)

        if next_kind != current_kind:
            current_kind = next_kind
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
    return f"{moment:%H:%M:%S} {entry['level'].lower():<7} {indent(entry['message'])}"


@click.command()
@click.argument("name_or_id", metavar="DEPLOYMENT")
@click.argument("revision", required=False)
@click.option("--wait/--no-wait", default=True, help="Follow the revision until it is deployed.")
@json_option
@connection_options
def rollback(platform: Platform, name_or_id: str, revision: str | None, *, wait: bool, as_json: bool) -> None:
    """Serve an earlier REVISION of a DEPLOYMENT again, by default the one before the active one.

    This creates a new revision with the old one's code, secrets and resources. It reuses the old build, unless the
    platform was upgraded since.
    """
    deployment = find_deployment(platform, name_or_id)
    target = revision or _previous_revision(platform, deployment)
    response = platform.call("POST", f"/v2/deployments/{deployment['id']}/revisions/{target}/redeploy")
    say(f"revision {target} is deployed again as {response['latest_revision_id']}")

    if wait:
        wait_for_revision(platform, deployment, response["latest_revision_id"])
        response = platform.call("GET", f"/v2/deployments/{deployment['id']}")

    if as_json:
        show_json(response)
    else:
        show_text(response["source_config"]["custom_url"] or response["id"])


def _previous_revision(platform: Platform, deployment: dict[str, Any]) -> str:
    """Return the last revision that was deployed before the active one. Raises UserMistake."""
    is_earlier = deployment["active_revision_id"] is None
    offset = 0
    while page := list_revisions(platform, deployment, limit=_PAGE, offset=offset):
        for revision in page:
            if is_earlier and revision["status"] == "DEPLOYED":
                return str(revision["id"])
            is_earlier = is_earlier or revision["id"] == deployment["active_revision_id"]

        offset += len(page)

    raise UserMistake(f"{deployment['name']} has no earlier revision that was deployed")


@deployments.command()
@click.argument("name_or_id", metavar="DEPLOYMENT")
@click.option("--min", "min_scale", type=REPLICAS, help="Minimum number of replicas.")
@click.option("--max", "max_scale", type=REPLICAS, help="Maximum number of replicas.")
@click.option("--queue-min", "queue_min_scale", type=REPLICAS, help="Minimum number of replicas that execute runs.")
@click.option("--queue-max", "queue_max_scale", type=REPLICAS, help="Maximum number of replicas that execute runs.")
@json_option
@connection_options
def scale(platform: Platform, name_or_id: str, *, as_json: bool, **limits: int | None) -> None:
    """Set the limits on replicas of a DEPLOYMENT (name or id); omitted limits are reset to its revision's."""
    deployment = find_deployment(platform, name_or_id)
    new_limits = platform.call("PUT", f"/v2/deployments/{deployment['id']}/scale", body=limits)
    if as_json:
        show_json(new_limits)
        return

    rows = [(name, "the revision's" if number is None else number) for name, number in new_limits.items()]
    show_table(("LIMIT", "REPLICAS"), rows)


@deployments.command()
@click.argument("name_or_id", metavar="DEPLOYMENT")
@click.argument("mode", required=False, type=click.Choice(ACCESS_MODES))
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Role whose members may call; repeat for more.")
@json_option
@connection_options
def access(platform: Platform, name_or_id: str, mode: str | None, roles: tuple[str, ...], *, as_json: bool) -> None:
    """Show or set who may call the agent of a DEPLOYMENT (name or id) with the platform's keys.

    MODE is workspace (any key of the workspace), permission (keys and members with deployments:call), roles (members
    with a --role), or none (nobody, unless the project's own authentication allows it). A change takes effect within
    ten seconds, without a new revision.
    """
    deployment = find_deployment(platform, name_or_id)
    if change := build_agent_access(mode, roles):
        deployment = platform.call("PATCH", f"/v2/deployments/{deployment['id']}", body=change)

    if as_json:
        show_json(deployment["agent_access"])
    else:
        show_text(describe_access(deployment))


@deployments.command("sleep")
@click.argument("name_or_id", metavar="DEPLOYMENT")
@click.argument("after", required=False)
@json_option
@connection_options
def sleep(platform: Platform, name_or_id: str, after: str | None, *, as_json: bool) -> None:
    """Show or set how long a DEPLOYMENT (name or id) may be idle, without requests and runs, before its agent sleeps.

    AFTER is a time such as 90s, 15m or 2h, or never. An agent that sleeps has no process; the next request, run or cron
    wakes it. A change makes no new revision.
    """
    deployment = find_deployment(platform, name_or_id)
    if after is not None:
        path = f"/v2/deployments/{deployment['id']}"
        deployment = platform.call("PATCH", path, body={"sleep_after_s": _parse_seconds(after)})

    if as_json:
        show_json({"sleep_after_s": deployment["sleep_after_s"], "is_asleep": deployment["is_asleep"]})
        return

    asleep = ", asleep now" if deployment["is_asleep"] else ""
    show_text(f"sleeps {_describe_span(deployment['sleep_after_s'])}{asleep}")


def _describe_span(seconds: int | None) -> str:
    """Return a time in its largest unit without a remainder, such as `after 15m`."""
    if not seconds:
        return "never"

    unit = next(name for name, length in reversed(_SPAN_S.items()) if seconds % length == 0)
    return f"after {seconds // _SPAN_S[unit]}{unit}"


def _parse_seconds(text: str) -> int:
    if text == "never":
        return 0
    if (span := _SPAN.fullmatch(text)) is None:
        raise UserMistake(f"invalid time {text}: use 90s, 15m, 2h, or never")

    return int(span[1]) * _SPAN_S[span[2]]


@deployments.command("pin-threads")
@click.argument("name_or_id", metavar="DEPLOYMENT")
@click.argument("hours", required=False, type=PIN_HOURS)
@json_option
@connection_options
def pin_threads(platform: Platform, name_or_id: str, hours: float | None, *, as_json: bool) -> None:
    """Show or set for how many HOURS threads of a DEPLOYMENT (name or id) continue with the revision that began them.

    After a new revision is deployed, threads that are interrupted or have runs keep their code for this long; 0 turns
    this off. A change takes effect at once, without a new revision.
    """
    deployment = find_deployment(platform, name_or_id)
    if hours is not None:
        deployment = platform.call("PATCH", f"/v2/deployments/{deployment['id']}", body={"pin_threads": hours})

    if as_json:
        show_json(deployment["pin_threads"])
    else:
        show_text(describe_pins(deployment))


@deployments.command()
@click.argument("name_or_id", metavar="DEPLOYMENT")
@json_option
@connection_options
def token(platform: Platform, name_or_id: str, *, as_json: bool) -> None:
    """Print a token that lets you call the agent of a DEPLOYMENT (name or id) for a minute, and nothing else."""
    deployment = find_deployment(platform, name_or_id)
    response = platform.call("POST", f"/v2/deployments/{deployment['id']}/token")
    if as_json:
        show_json(response)
    else:
        show_text(response["access_token"])


def get_usage(platform: Platform, deployment: dict[str, Any]) -> dict[str, Any]:
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


@click.group(cls=CommandGroup)
def secrets() -> None:
    """List, set and remove the secrets of a deployment."""


@secrets.command("list")
@click.argument("name_or_id", metavar="DEPLOYMENT")
@json_option
@connection_options
def list_secrets(platform: Platform, name_or_id: str, *, as_json: bool) -> None:
    """List the names of the secrets of a DEPLOYMENT (name or id)."""
    deployment = find_deployment(platform, name_or_id)
    if as_json:
        show_json(_secret_names(deployment))
        return

    for name in _secret_names(deployment):
        show_text(name)

    if not deployment["secrets"]:
        say(f"{deployment['name']} has no secrets")


@secrets.command("set")
@click.argument("name_or_id", metavar="DEPLOYMENT")
@click.argument("name")
@_wait_option
@json_option
@connection_options
def set_secret(platform: Platform, name_or_id: str, name: str, *, wait: bool, as_json: bool) -> None:
    """Set the secret NAME of a DEPLOYMENT (name or id), which makes a new revision.

    Prompts for the value, or reads it from standard input. The other secrets stay.
    """
    deployment = find_deployment(platform, name_or_id)
    changes = {"set": [{"name": name, "value": ask_value(name)}]}
    _change_secrets(platform, deployment, changes, wait=wait, as_json=as_json)


@secrets.command()
@click.argument("name_or_id", metavar="DEPLOYMENT")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_wait_option
@json_option
@connection_options
def unset(platform: Platform, name_or_id: str, names: tuple[str, ...], *, wait: bool, as_json: bool) -> None:
    """Remove secrets of a DEPLOYMENT (name or id), which makes a new revision."""
    deployment = find_deployment(platform, name_or_id)
    unknown = [name for name in names if name not in _secret_names(deployment)]
    if unknown:
        raise UserMistake(f"{deployment['name']} has no secret {unknown[0]}; 'portside secrets list' shows its secrets")

    _change_secrets(platform, deployment, {"unset": list(names)}, wait=wait, as_json=as_json)


def _secret_names(deployment: dict[str, Any]) -> list[str]:
    return [secret["name"] for secret in deployment["secrets"]]


def _change_secrets(
    platform: Platform, deployment: dict[str, Any], changes: dict[str, Any], *, wait: bool, as_json: bool
) -> None:
    # The platform applies the changes to what is there then: two commands at the same moment lose nothing.
    response = platform.call("PATCH", f"/v2/deployments/{deployment['id']}", body={"secret_changes": changes})
    revision = response["latest_revision_id"]
    if revision is not None:
        say(f"revision {revision} of {deployment['name']} has the new secrets")

        if wait:
            wait_for_revision(platform, deployment, revision)

    if as_json:
        show_json({"deployment_id": deployment["id"], "revision_id": revision, "secrets": _secret_names(response)})
