"""Files of agents and skills: repositories whose commits hold a tree of files, and links to other repositories.

A commit names the paths that it writes or removes; the other files stay. Each commit stores the whole tree. A link
always means the latest commit of its repository: when a tree is pulled, the link gets the hash of that commit.

Paths come from one client and are written to disks by others: a path leads to a place below its folder, nowhere else.
"""

import re
from typing import Any
from uuid import UUID

import msgspec

from portside.identity.types import Actor
from portside.kernel.db import Database, Session
from portside.kernel.errors import Invalid
from portside.prompts import repos
from portside.prompts.sql import sql
from portside.prompts.types import (
    LATEST,
    Commit,
    Directory,
    DirectoryCommitRequest,
    DirectoryQuery,
    Entry,
    HoldsNoFiles,
    PromptNotFound,
)

Files = dict[str, Entry]

MAX_ENTRIES = 1000
MAX_TREE_BYTES = 5_000_000
_MAX_PATH_CHARS = 500
_UNSAFE_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\\]")
_OWN_WORKSPACE = "-"


async def commit_files(db: Database, owner: str, handle: str, body: DirectoryCommitRequest, *, by: Actor) -> Commit:
    """Append a commit with changed files, and return it; the latest commit if nothing changes.

    Raises PromptNotFound, PromptOfOthers, HoldsNoFiles for the repository of a prompt, ParentOutdated if a parent is
    named that is not the latest commit, and Invalid.
    """
    for path, entry in body.files.items():
        _check_path(path)
        _check_entry(path, entry)

    repo = await repos.find_repo(db, owner, handle, by=by, to_change=True)
    if repo.repo_type == "prompt":
        raise HoldsNoFiles

    async with db.transaction() as tx:
        latest = await repos.lock_latest_commit(tx, repo.id, by=by)
        if body.parent_commit is not None:
            repos.check_parent(body.parent_commit, "" if latest is None else latest["commit_hash"])

        files: Files = {} if latest is None else await _read_files(tx, repo.id, latest["id"])
        entries = {path: entry for path, entry in body.files.items() if entry is not None}
        links = await _find_links(tx, entries, by=by)
        for path, entry in body.files.items():
            if entry is None:
                files.pop(path, None)
            elif entry.type == "file":
                files[path] = Entry(type="file", content=entry.content)
            else:
                files[path] = _resolve_link(path, entry, links)

        _check_tree(files)

        manifest = {"files": dict(sorted(files.items()))}
        return await repos.append_commit(tx, repo.id, latest, manifest)


async def pull_files(db: Session, owner: str, handle: str, query: DirectoryQuery, *, by: Actor) -> Directory:
    """Return the files of a commit, and count the pull; links have the latest commit of what they lead to.

    Raises PromptNotFound, also for a repository of another type, and CommitNotFound.
    """
    repo = await repos.find_repo(db, owner, handle, by=by)
    if repo.repo_type == "prompt" or query.repo_type not in {None, repo.repo_type}:
        raise PromptNotFound

    row = await repos.pull_commit_row(db, repo.id, query.commit or LATEST)
    files = _decode_files(row["manifest"])
    links = await _find_links(db, files, by=by)
    for path, entry in files.items():
        if entry.type != "file" and (link := links.get((entry.owner, entry.repo_handle))) is not None:
            files[path] = msgspec.structs.replace(entry, commit_id=link["commit_id"], commit_hash=link["commit_hash"])

    return Directory(commit_id=row["id"], commit_hash=row["commit_hash"], files=files)


async def delete_directory(db: Session, owner: str, handle: str, repo_type: str | None, *, by: Actor) -> None:
    """Delete the repository of an agent or a skill with its commits.

    Raises PromptNotFound, also for a repository of another type, and PromptOfOthers.
    """
    repo = await repos.find_repo(db, owner, handle, by=by, to_change=True)
    if repo.repo_type == "prompt" or repo_type not in {None, repo.repo_type}:
        raise PromptNotFound

    await repos.delete_prompt(db, owner, handle, by=by)


async def _read_files(db: Session, repo_id: UUID, commit_id: UUID) -> Files:
    return _decode_files(await db.fetchval(sql.manifest_of_commit, repo_id=repo_id, id=commit_id))


def _decode_files(manifest: str) -> Files:
    return msgspec.json.decode(manifest, type=dict[str, Files])["files"]


async def _find_links(db: Session, files: Files, *, by: Actor) -> dict[tuple[str | None, str | None], Any]:
    """Return what the links lead to, by owner and name, as far as the caller may read it."""
    links = [entry for entry in files.values() if entry.type != "file"]
    if not links:
        return {}

    rows = await db.fetch(
        sql.linked_repos,
        workspace_id=by.workspace_id,
        owners=[link.owner or _OWN_WORKSPACE for link in links],
        handles=[link.repo_handle for link in links],
    )

    links_by_address: dict[tuple[str | None, str | None], Any] = {}
    for row in rows:
        owner = row["asked_owner"]
        links_by_address[owner, row["handle"]] = row
        if owner == _OWN_WORKSPACE:
            # A link may leave its owner out too.
            links_by_address[None, row["handle"]] = row

    return links_by_address


def _resolve_link(path: str, entry: Entry, links: dict[tuple[str | None, str | None], Any]) -> Entry:
    """Return a link with the owner of its repository. Raises Invalid if the caller can read no such repository."""
    link = links.get((entry.owner, entry.repo_handle))
    if link is None or link["repo_type"] != entry.type:
        why = f"there is no {entry.type} {entry.repo_handle!r} that you may read; create it before you link it"
        raise Invalid.field(["body", "files", path, "repo_handle"], why)

    return Entry(type=entry.type, repo_handle=entry.repo_handle, owner=link["owner"])


def _check_path(path: str) -> None:
    """Raise Invalid for a path that could lead out of its folder, or that some file system refuses."""
    parts = path.split("/")
    is_safe = not any(part in {"", ".", ".."} for part in parts) and not _UNSAFE_CHARACTERS.search(path)
    if not is_safe or len(path) > _MAX_PATH_CHARS:
        why = (
            f"send a relative path like skills/search.md: at most {_MAX_PATH_CHARS} characters, no backslash or control"
            " character, and no part that is empty, '.' or '..'"
        )

        raise Invalid.field(["body", "files", path[:_MAX_PATH_CHARS]], why)


def _check_entry(path: str, entry: Entry | None) -> None:
    if entry is None:
        return

    where = ["body", "files", path]
    if entry.type == "file" and entry.content is None:
        raise Invalid.field([*where, "content"], "Field required", "missing")
    if entry.type != "file" and entry.repo_handle is None:
        raise Invalid.field([*where, "repo_handle"], "Field required", "missing")

    if entry.selector is not None:
        why = "a link cannot be pinned: it means the latest commit; leave the field out"
        raise Invalid.field([*where, "selector"], why, "not_supported")


def _check_tree(files: Files) -> None:
    """Raise Invalid for a tree that is too large, or in which a path is both a file and a folder."""
    if len(files) > MAX_ENTRIES:
        raise Invalid.field(["body", "files"], f"a repository holds at most {MAX_ENTRIES} files; remove some")

    size = sum(len(path) + len((entry.content or "").encode()) for path, entry in files.items())
    if size > MAX_TREE_BYTES:
        why = f"the files of a repository have at most {MAX_TREE_BYTES} bytes together, these have {size}; remove some"
        raise Invalid.field(["body", "files"], why)

    for path in files:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folder in files:
                why = f"{folder!r} is a file or a link, so nothing can be below it; remove it or choose another path"
                raise Invalid.field(["body", "files", path], why)
