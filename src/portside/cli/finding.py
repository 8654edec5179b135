"""Finding what the command line names: deployments by name or id, and how their revisions are shown."""

from typing import Any

from portside.cli.client import Platform
from portside.cli.output import show_table
from portside.kernel.errors import UserMistake


def find(platform: Platform, name_or_id: str) -> dict[str, Any]:
    """Return a deployment by name or id. Raises UserMistake when there is none."""
    found = platform.call("GET", "/v2/deployments", name=name_or_id)["resources"]
    for deployment in found:
        if deployment["name"] == name_or_id:
            return dict(deployment)
    if len(name_or_id) == 36:
        return dict(platform.call("GET", f"/v2/deployments/{name_or_id}"))
    raise UserMistake(f"there is no deployment named {name_or_id}; 'portside deployments list' shows them")


def revisions_of(
    platform: Platform, deployment: dict[str, Any], *, limit: int, offset: int = 0
) -> list[dict[str, Any]]:
    """Return a deployment's revisions, newest first."""
    path = f"/v2/deployments/{deployment['id']}/revisions"
    return list(platform.call("GET", path, limit=limit, offset=offset)["resources"])


def show_revisions(deployment: dict[str, Any], revisions: list[dict[str, Any]]) -> None:
    """Print revisions as a table."""
    rows = [
        (
            revision["id"],
            revision["status"] + (" (serving)" if revision["id"] == deployment["active_revision_id"] else ""),
            _made_of(revision["source_revision_config"]),
            revision["created_at"][:19],
            (revision.get("status_message") or "").split("\n", 1)[0][:80],
        )
        for revision in revisions
    ]
    show_table(("REVISION", "STATUS", "MADE OF", "CREATED", "REASON"), rows)


def _made_of(config: dict[str, Any]) -> str:
    if config.get("image_uri"):
        return str(config["image_uri"])
    if config.get("source_tarball_path"):
        return "an upload"
    return (config.get("repo_commit_sha") or "")[:12]
