"""Following a revision until it is deployed or has failed, with its build log as it grows."""

import time
from collections.abc import Callable
from typing import Any

from portside.cli.client import AwayError, Platform
from portside.kernel.errors import UserMistake

POLL_S = 0.5
PATIENCE_S = 60.0
FAILED = ("CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED", "UNKNOWN")


def follow_revision(
    platform: Platform, deployment_id: str, revision_id: str, *, say: Callable[[str], None], show_log: bool = True
) -> None:
    """Return when the revision is DEPLOYED. Raises UserMistake with the reason when it fails.

    The revision goes on by itself, so a platform that is away is asked again for a minute.
    """
    path = f"/v2/deployments/{deployment_id}/revisions/{revision_id}"
    status, offset = "", None
    while True:
        revision = _ask(platform, path)
        if show_log:
            offset = _show_new_lines(platform, path, offset, say)
        if revision["status"] != status:
            status = revision["status"]
            say(status)
        if status == "DEPLOYED":
            return
        if status in FAILED:
            raise UserMistake(_reason(platform, deployment_id, revision))
        time.sleep(POLL_S)


def _show_new_lines(platform: Platform, path: str, offset: str | None, say: Callable[[str], None]) -> str | None:
    answer = _ask(platform, f"{path}/logs", type="build", order="asc", limit=1000, offset=offset)
    for entry in answer["logs"]:
        say(f"  {entry['message']}")
    return answer["next_offset"] or offset


def _reason(platform: Platform, deployment_id: str, revision: dict[str, Any]) -> str:
    kind = "deploy" if revision["status"] == "DEPLOY_FAILED" else "build"
    path = f"/v2/deployments/{deployment_id}/revisions/{revision['id']}/logs"
    lines = _ask(platform, path, type=kind, order="desc", limit=15)["logs"]
    tail = "\n".join(f"  {entry['message']}" for entry in reversed(lines))
    return f"the revision ended {revision['status']}: {revision.get('status_message') or 'see the log'}\n{tail}"


def _ask(platform: Platform, path: str, **query: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return platform.call("GET", path, **query)
        except AwayError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
