"""Prompts with their commits and tags.

Commits are appended in their order. Hashes of commits are computed by each server: where the target computes another
one, it gets the source's hash and its first eight digits as tags, so that what names a commit by its hash finds it.
Agents and skills, which are folders of files, are not carried.
"""

import re
from typing import Any

from portside.transfer.report import Report
from portside.transfer.server import RemoteServer, RequestRefused, UnexpectedAnswer, pick

KIND = "prompts"
COMMITS = "commits"
_HANDLE = re.compile(r"[A-Za-z0-9_-]{1,200}")
_HASH = re.compile(r"[A-Za-z0-9]{1,64}")
_SHORT_HASH = 8


def carry_prompts(source: RemoteServer, target: RemoteServer, report: Report) -> None:
    """Carry all prompts of the workspace; those that others published are not its own."""
    workspace_id = source.call("GET", "/settings")["id"]
    for prompt in source.pages("/repos", _build_filter(source, workspace_id), key="repos"):
        if prompt.get("tenant_id") not in (None, workspace_id):
            continue

        with report.item(KIND, prompt.get("repo_handle")):
            _carry(source, target, report, prompt)


def _build_filter(source: RemoteServer, workspace_id: str) -> dict[str, str]:
    """Return the query of the workspace's own prompts; not every server has prompts of others, and the filter."""
    query = {"is_archived": "allow", "tenant_id": workspace_id}
    try:
        source.call("GET", "/repos", query={**query, "limit": 1})
    except RequestRefused as refusal:
        if refusal.status not in (400, 422):
            raise
        del query["tenant_id"]

    return query


def _carry(source: RemoteServer, target: RemoteServer, report: Report, prompt: dict[str, Any]) -> None:
    handle = str(prompt["repo_handle"])
    if not _HANDLE.fullmatch(handle):
        raise UnexpectedAnswer("its handle has other characters than letters, digits, hyphens and underscores")

    owner = str(prompt.get("owner") or "-")
    if not _HANDLE.fullmatch(owner):
        raise UnexpectedAnswer("its owner has other characters than letters, digits, hyphens and underscores")

    existing = target.find(f"/repos/-/{handle}")
    if existing is None:
        body = {
            **pick(prompt, "repo_handle", "description", "readme", "tags"),
            "is_public": bool(prompt.get("is_public")),
        }
        target.call("POST", "/repos", body=body)
        if prompt.get("is_archived"):
            target.call("PATCH", f"/repos/-/{handle}", body={"is_archived": True})

    added = _carry_commits(source, target, report, f"{owner}/{handle}", handle)
    if existing is None or added:
        report.carry(KIND)
    else:
        report.find(KIND)


def _carry_commits(source: RemoteServer, target: RemoteServer, report: Report, path: str, handle: str) -> int:
    """Append the commits that the target lacks, and set the tags; return how many were appended."""
    commits = list(source.pages(f"/commits/{path}", {}, key="commits"))[::-1]
    present = list(target.pages(f"/commits/-/{handle}", {}, key="commits"))[::-1]
    if len(present) > len(commits):
        report.note(KIND, handle, "the target has more commits than the source, so that none was added")
        return 0

    targets = dict(zip([commit["commit_hash"] for commit in commits], present, strict=False))
    parent = present[-1]["commit_hash"] if present else None
    for commit in commits[len(present) :]:
        commit_hash = str(commit["commit_hash"])
        if not _HASH.fullmatch(commit_hash):
            raise UnexpectedAnswer("a commit has a hash with other characters than letters and digits")

        manifest = source.call("GET", f"/commits/{path}/{commit_hash}", query={"include_model": "true"})["manifest"]
        body = {"manifest": manifest, "parent_commit": parent, **pick(commit, "description")}
        stored = target.call("POST", f"/commits/-/{handle}", body=body)["commit"]
        targets[commit_hash] = stored
        parent = stored["commit_hash"]
        report.carry(COMMITS)

    _carry_tags(source, target, path, handle, targets)
    return len(commits) - len(present)


def _carry_tags(
    source: RemoteServer, target: RemoteServer, path: str, handle: str, targets: dict[str, dict[str, Any]]
) -> None:
    tags = {str(tag["tag_name"]): str(tag["commit_hash"]) for tag in source.find(f"/repos/{path}/tags") or ()}
    for commit_hash, stored in targets.items():
        if stored["commit_hash"] != commit_hash:
            tags |= {commit_hash: commit_hash, commit_hash[:_SHORT_HASH]: commit_hash}

    present = {tag["tag_name"]: tag["commit_hash"] for tag in target.call("GET", f"/repos/-/{handle}/tags")}
    for name, commit_hash in tags.items():
        commit = targets.get(commit_hash)
        if commit is not None and present.get(name) != commit["commit_hash"]:
            target.call("POST", f"/repos/-/{handle}/tags", body={"tag_name": name, "commit_id": commit["id"]})
