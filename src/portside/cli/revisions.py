"""Create and find deployments, show their revisions, and follow a revision until it is deployed or has failed."""

import re
import time
from collections.abc import Callable, Sequence
from shlex import quote
from typing import Any

import click

from portside.cli.client import Platform, PlatformUnavailable
from portside.cli.output import get_program, say, say_if_interrupted, show_table
from portside.kernel.errors import UserMistake
from portside.kernel.shortening import first_line

SHOWN_REASON = 80
PIN_HOURS = click.FloatRange(0, 8760)
ACCESS_MODES = ("workspace", "permission", "roles", "none")
POLL_S = 0.5
RETRY_FOR_S = 60.0
# In these states the server has a log.
_STARTING = frozenset({"DEPLOYING", "DEPLOYED", "DEPLOY_FAILED"})
# A line of uv's list of installed and removed packages.
_PACKAGE = re.compile(r"\s*[+~-] \S+(?:==| @ )\S+")
_FAILED = ("CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED", "UNKNOWN")


def find_deployment(platform: Platform, name_or_id: str) -> dict[str, Any]:
    """Return a deployment by name or id. Raises UserMistake for an unknown one."""
    deployments = platform.call("GET", "/v2/deployments", name=name_or_id)["resources"]
    for deployment in deployments:
        if deployment["name"] == name_or_id:
            return dict(deployment)

    if len(name_or_id) == 36:
        return dict(platform.call("GET", f"/v2/deployments/{name_or_id}"))

    raise UserMistake(f"there is no deployment named {name_or_id}; 'portside deployments list' shows them")


def build_create_body(
    platform: Platform, name: str, source: str, revision_config: object, *, integration: str | None = None
) -> dict[str, Any]:
    """Return the body of a create from git, with plain git or a named integration. Raises UserMistake."""
    integrations = platform.call("GET", "/v1/integrations/git_hosting/install")
    options = [entry for entry in integrations if integration is None or entry["name"] == integration]
    if not options:
        raise UserMistake(f"there is no integration named {integration}; 'portside integrations list' shows them")

    return {
        "name": name,
        "source": "git_hosting",
        "source_config": {
            "integration_id": options[0]["id"],
            "repo_url": source,
            "deployment_type": "dev",
            "build_on_push": False,
        },
        "source_revision_config": revision_config,
        "secrets": [],
    }


def build_agent_access(mode: str | None, roles: Sequence[str]) -> dict[str, Any]:
    """Return the field of a request that says who may call the agent; empty if the user chose nothing."""
    if mode is None and not roles:
        return {}
    return {"agent_access": {"allow": mode or "roles", "roles": list(roles)}}


def describe_access(deployment: dict[str, Any]) -> str:
    """Return who may call a deployment's agent, in a few words."""
    access = deployment["agent_access"]
    return ", ".join(access["roles"]) or str(access["allow"])


def describe_pins(deployment: dict[str, Any]) -> str:
    """Return for how long threads continue with the revision that began them."""
    return f"{deployment['pin_threads']:g} h" if deployment["pin_threads"] else "no"


def list_revisions(
    platform: Platform, deployment: dict[str, Any], *, limit: int, offset: int = 0
) -> list[dict[str, Any]]:
    """Return a deployment's revisions, newest first."""
    path = f"/v2/deployments/{deployment['id']}/revisions"
    return list(platform.call("GET", path, limit=limit, offset=offset)["resources"])


def show_revisions(
    deployment: dict[str, Any], revisions: list[dict[str, Any]], threads: dict[str, int] | None = None
) -> None:
    """Print revisions as a table, with the number of threads that use each one's code if that is given."""
    active = " (serving)" if deployment["status"] == "READY" else " (active)"
    rows = []
    for revision in revisions:
        row = [
            revision["id"],
            revision["status"] + (active if revision["id"] == deployment["active_revision_id"] else ""),
            _describe_code(revision["source_revision_config"]),
            revision["created_at"][:19],
        ]
        if threads is not None:
            row.append(threads.get(revision["id"], 0))

        rows.append([*row, get_brief_reason(revision)])

    headings = ["REVISION", "STATUS", "CODE", "CREATED"]
    if threads is not None:
        headings.append("THREADS")

    show_table([*headings, "REASON"], rows)


def add_shown_status(platform: Platform, deployment: dict[str, Any]) -> dict[str, Any]:
    """Return the deployment as ASLEEP if it sleeps, as FAILED if it is unused and its newest revision failed."""
    if deployment["status"] == "READY" and deployment["is_asleep"]:
        return {**deployment, "status": "ASLEEP"}
    if deployment["status"] != "UNUSED":
        return deployment

    newest = list_revisions(platform, deployment, limit=1)
    if not newest or not newest[0]["status"].endswith("_FAILED"):
        return deployment

    return {**deployment, "status": "FAILED", "status_message": newest[0]["status_message"]}


def get_brief_reason(resource: dict[str, Any]) -> str:
    """Return the first line of the status message of a deployment or revision."""
    return first_line(resource.get("status_message") or "", SHOWN_REASON)


def _describe_code(config: dict[str, Any]) -> str:
    if config.get("image_uri"):
        return str(config["image_uri"])
    if config.get("source_tarball_path"):
        return "an upload"

    return (config.get("repo_commit_sha") or "")[:12]


def follow_revision(
    platform: Platform,
    deployment_id: str,
    revision_id: str,
    *,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the revision is DEPLOYED. Raises UserMistake with the reason if it fails.

    The revision does not depend on this command, so requests are retried for a minute if the platform is unavailable.
    """
    path = f"/v2/deployments/{deployment_id}/revisions/{revision_id}"
    logs = _PrintedLogs(platform, path, say, pause)
    status = ""
    while True:
        revision = call_with_retry(platform, path, pause=pause)
        logs.print_build()

        if revision["status"] in _STARTING:
            logs.print_warnings()

        if revision["status"] != status:
            status = revision["status"]
            say(status)

        if status == "DEPLOYED":
            return
        if status in _FAILED:
            raise UserMistake(logs.reason(revision))

        pause(POLL_S)


def wait_for_revision(platform: Platform, deployment: dict[str, Any], revision_id: str) -> None:
    """Follow a revision until it is deployed, and say what goes on if that is interrupted. Raises UserMistake."""
    command = f"{get_program()} deployments show {quote(deployment['name'])}"
    with say_if_interrupted(f"interrupted: the platform goes on with the revision; '{command}' says how far it is"):
        follow_revision(platform, deployment["id"], revision_id, say=say)


class _PrintedLogs:
    """Prints the logs of one revision, and remembers what was printed so that nothing is printed twice."""

    def __init__(
        self, platform: Platform, path: str, say: Callable[[str], None], pause: Callable[[float], None]
    ) -> None:
        self._platform = platform
        self._path = path
        self._say = say
        self._pause = pause
        self._offsets: dict[str, str] = {}
        self._lines: set[str] = set()

    def print_build(self) -> None:
        """Print new lines of the build log, except errors, which are in the reason, and lists of packages."""
        for entry in self._new("build"):
            if entry["level"] != "ERROR" and not _PACKAGE.match(entry["message"]):
                self._show(entry["message"])

    def print_warnings(self) -> None:
        """Print the first line of new warnings of the server; the log has their stacks."""
        for entry in self._new("deploy"):
            if entry["level"] == "WARNING":
                self._show(entry["message"].partition("\n")[0])

    def reason(self, revision: dict[str, Any]) -> str:
        """Return why the revision failed, without lines that were already printed."""
        kind = "deploy" if revision["status"] == "DEPLOY_FAILED" else "build"
        message = revision.get("status_message") or "see the log\n" + self._tail(kind)

        first, *rest = message.splitlines()
        new_lines = [f"  {line}" for line in rest if line.strip() and line.strip() not in self._lines]
        if kind == "deploy" and "ImportError" in first:
            new_lines.append("  The build log lists the installed packages: portside logs DEPLOYMENT --build")

        return "\n".join([f"the revision failed with {revision['status']}: {first}", *new_lines])

    def _new(self, kind: str) -> list[dict[str, Any]]:
        path = f"{self._path}/logs"
        offset = self._offsets.get(kind)
        query = {"type": kind, "order": "asc", "limit": 1000, "offset": offset}

        response = call_with_retry(self._platform, path, pause=self._pause, **query)
        if response["next_offset"]:
            self._offsets[kind] = response["next_offset"]

        return list(response["logs"])

    def _tail(self, kind: str) -> str:
        query = {"type": kind, "order": "desc", "limit": 15}
        lines = call_with_retry(self._platform, f"{self._path}/logs", pause=self._pause, **query)["logs"]
        return "\n".join(entry["message"] for entry in reversed(lines))

    def _show(self, message: str) -> None:
        for line in message.splitlines():
            self._lines.add(line.strip())
            self._say(f"  {line}")


def call_with_retry(platform: Platform, path: str, *, pause: Callable[[float], None] = time.sleep, **query: Any) -> Any:
    """Send a GET request; send it again for a minute while the platform is unavailable. Raises UserMistake."""
    deadline = time.monotonic() + RETRY_FOR_S
    while True:
        try:
            return platform.call("GET", path, **query)
        except PlatformUnavailable:
            if time.monotonic() > deadline:
                raise
            pause(POLL_S)
