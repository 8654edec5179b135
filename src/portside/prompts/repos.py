"""Prompts: repositories of manifests with commits, tags and likes; `directories.py` is about those that hold files.

A prompt is addressed as `owner/name`; the owner `-` is the caller's own workspace. Callers of every workspace of this
installation can read a public prompt; only its owner can change it. Commits form a chain: the hash of a commit covers
its manifest and all earlier commits.
"""

import hashlib
import re
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from portside.identity.types import Actor
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from portside.prompts.sql import sql
from portside.prompts.types import (
    LATEST,
    Commit,
    CommitList,
    CommitNotFound,
    CommitQuery,
    CommitRequest,
    CommitTag,
    CommitTagRequest,
    HoldsFiles,
    Likes,
    Manifest,
    NothingToCommit,
    ParentOutdated,
    Prompt,
    PromptExists,
    PromptList,
    PromptNotFound,
    PromptOfOthers,
    PromptPatch,
    PromptQuery,
    PromptRequest,
    PromptTagNotFound,
    RepoType,
    Settings,
)

_SEPARATORS = str.maketrans(dict.fromkeys("-_./:,;()\n", " "))
_ARCHIVED = {"true": True, "false": False, "allow": None}
_LIMIT = 100
_SHORT_HASH = re.compile(r"[0-9a-f]{8,64}")
_SEQUENCE = "RunnableSequence"
_encode_canonical = msgspec.json.Encoder(order="deterministic").encode


async def get_settings(db: Session, *, by: Actor) -> Settings:
    """Return the workspace of the caller."""
    row = await db.fetchrow(sql.settings_of_workspace, workspace_id=by.workspace_id)
    if row is None:
        raise PromptNotFound

    return Settings(**dict(row))


class Repo(NamedTuple):
    """A repository, and whether it holds a prompt or the files of an agent or a skill."""

    id: UUID
    repo_type: RepoType


async def find_repo(db: Session, owner: str, handle: str, *, by: Actor, to_change: bool = False) -> Repo:
    """Return a repository that the caller may read, or change.

    Raises PromptNotFound, and PromptOfOthers for one that can be read but not changed.
    """
    row = await db.fetchrow(sql.find_repo, workspace_id=by.workspace_id, owner=owner, handle=handle)
    if row is None:
        raise PromptNotFound
    if to_change and row["workspace_id"] != by.workspace_id:
        raise PromptOfOthers

    return Repo(row["id"], row["repo_type"])


async def _keep_repo(tx: Session, repo_id: UUID) -> None:
    """Keep a prompt from being deleted until the transaction ends. Raises PromptNotFound if it is gone already."""
    if await tx.fetchval(sql.keep_repo, repo_id=repo_id) is None:
        raise PromptNotFound


async def list_prompts(db: Session, query: PromptQuery, *, by: Actor) -> PromptList:
    """List the prompts of the workspace, last changed first unless the query sorts them."""
    rows = await _fetch_repos(db, query, None, by=by)
    prompts = [_to_prompt(row) for row in rows]
    if not rows and query.offset:
        # Rows carry the total, and a page behind the end has none.
        first_page = msgspec.structs.replace(query, offset=0, limit=1)
        rows = await _fetch_repos(db, first_page, None, by=by)

    return PromptList(repos=prompts, total=rows[0]["total"] if rows else 0)


async def get_prompt(db: Session, owner: str, handle: str, *, by: Actor) -> Prompt:
    """Return a prompt, and count the view. Raises PromptNotFound."""
    repo = await find_repo(db, owner, handle, by=by)
    await db.execute(sql.count_view, id=repo.id)
    return await _get_prompt(db, repo.id, by=by)


async def create_prompt(db: Session, body: PromptRequest, *, by: Actor) -> Prompt:
    """Create a prompt without commits. Raises PromptExists and Invalid."""
    repo_id = await db.fetchval(
        sql.create_repo,
        id=uuid7(),
        workspace_id=by.workspace_id,
        handle=body.repo_handle,
        description=body.description or "",
        readme=body.readme or "",
        tags=body.tags or [],
        is_public=body.is_public,
        repo_type=body.repo_type,
    )
    if repo_id is None:
        raise PromptExists

    return await _get_prompt(db, repo_id, by=by)


async def update_prompt(db: Session, owner: str, handle: str, patch: PromptPatch, *, by: Actor) -> Prompt:
    """Change the description of a prompt. Raises PromptNotFound and PromptOfOthers."""
    repo = await find_repo(db, owner, handle, by=by, to_change=True)
    await db.execute(sql.update_repo, id=repo.id, workspace_id=by.workspace_id, **_to_fields(patch))
    return await _get_prompt(db, repo.id, by=by)


async def delete_prompt(db: Session, owner: str, handle: str, *, by: Actor) -> None:
    """Delete a prompt with its commits. Raises PromptNotFound and PromptOfOthers."""
    repo = await find_repo(db, owner, handle, by=by, to_change=True)
    await db.execute(sql.delete_repo, id=repo.id, workspace_id=by.workspace_id)


async def like_prompt(db: Database, owner: str, handle: str, *, like: bool, by: Actor) -> Likes:
    """Like a prompt or withdraw the like; return the number of likes. Raises PromptNotFound."""
    repo = await find_repo(db, owner, handle, by=by)
    async with db.transaction() as tx:
        await _keep_repo(tx, repo.id)
        await tx.execute(sql.like_repo if like else sql.unlike_repo, id=repo.id, liked_by=_get_liker(by))
        return Likes(await tx.fetchval(sql.likes_of_repo, id=repo.id))


async def _get_prompt(db: Session, repo_id: UUID, *, by: Actor) -> Prompt:
    rows = await _fetch_repos(db, PromptQuery(), repo_id, by=by)
    if not rows:
        raise PromptNotFound

    return _to_prompt(rows[0])


async def _fetch_repos(db: Session, query: PromptQuery, repo_id: UUID | None, *, by: Actor) -> list[Record]:
    """Return the rows of matching repositories, or of the one with this id; each row has the number of all matches."""
    return await db.fetch(
        sql.list_repos,
        id=repo_id,
        workspace_id=by.workspace_id,
        repo_type=query.repo_type,
        liked_by=_get_liker(by),
        is_public=query.is_public,
        is_archived=_ARCHIVED[query.is_archived],
        tags=query.tags,
        start=query.query,
        words=None if query.query is None else query.query.translate(_SEPARATORS),
        match_prefix=bool(query.match_prefix),
        sort_field=query.sort_field,
        ascending=query.sort_direction == "asc",
        limit=query.limit,
        offset=query.offset,
    )


def _to_prompt(row: Record) -> Prompt:
    columns = dict(row)
    del columns["total"]
    return Prompt(**columns)


def _get_liker(by: Actor) -> UUID:
    return by.user_id or by.key_id


def _to_fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


async def empty_workspace(db: Session, workspace_id: UUID) -> None:
    """Delete all repositories of a workspace, with their commits."""
    await db.execute(sql.empty_workspace, workspace_id=workspace_id)


class CommitAddress(NamedTuple):
    """The address of a commit: `owner/repo:commit`."""

    owner: str
    repo: str
    commit: str


async def create_commit(db: Database, owner: str, handle: str, body: CommitRequest, *, by: Actor) -> Commit:
    """Append a commit with a manifest.

    Raises PromptNotFound, PromptOfOthers, HoldsFiles for the repository of an agent or a skill, ParentOutdated if the
    parent is not the latest commit, and NothingToCommit if the manifest has not changed.
    """
    repo = await find_repo(db, owner, handle, by=by, to_change=True)
    if repo.repo_type != "prompt":
        raise HoldsFiles

    async with db.transaction() as tx:
        latest = await lock_latest_commit(tx, repo.id, by=by)
        check_parent(body.parent_commit, "" if latest is None else latest["commit_hash"])

        commit = await append_commit(tx, repo.id, latest, body.manifest, body.description)
        if latest is not None and commit.id == latest["id"]:
            raise NothingToCommit

        return commit


async def lock_latest_commit(tx: Session, repo_id: UUID, *, by: Actor) -> Record | None:
    """Return the latest commit, None without one; others wait with theirs until the transaction ends.

    Raises PromptNotFound if the repository is gone.
    """
    if await tx.fetchval(sql.lock_repo, repo_id=repo_id, workspace_id=by.workspace_id) is None:
        raise PromptNotFound

    return await tx.fetchrow(sql.latest_commit, repo_id=repo_id)


async def append_commit(
    tx: Session, repo_id: UUID, latest: Record | None, manifest: dict[str, Any], description: str | None = None
) -> Commit:
    """Append a commit to the latest one, which is locked; return the latest one if the manifest has not changed."""
    manifest_hash = hashlib.sha256(_encode_canonical(manifest)).hexdigest()
    if latest is not None and latest["manifest_hash"] == manifest_hash:
        return (await _list_commits(tx, repo_id, latest["id"], CommitQuery()))[0]

    latest_hash = "" if latest is None else latest["commit_hash"]
    commit_id = uuid7()
    await tx.execute(
        sql.create_commit,
        id=commit_id,
        repo_id=repo_id,
        number=1 if latest is None else latest["number"] + 1,
        parent_id=None if latest is None else latest["id"],
        commit_hash=hashlib.sha256(f"{latest_hash}\n{manifest_hash}".encode()).hexdigest(),
        manifest_hash=manifest_hash,
        manifest=msgspec.json.encode(manifest).decode(),
        description=description,
    )

    return (await _list_commits(tx, repo_id, commit_id, CommitQuery()))[0]


async def list_commits(db: Session, owner: str, handle: str, query: CommitQuery, *, by: Actor) -> CommitList:
    """List the commits of a prompt, newest first. Raises PromptNotFound."""
    repo = await find_repo(db, owner, handle, by=by)
    commits = await _list_commits(db, repo.id, None, query)
    total = await db.fetchval(sql.count_commits, repo_id=repo.id)
    return CommitList(commits=commits, total=total)


async def pull_commit(db: Session, address: CommitAddress, *, include_model: bool, by: Actor) -> Manifest:
    """Return a commit by `latest`, a tag, its hash or at least 8 characters of it, and count the pull.

    Raises PromptNotFound and CommitNotFound.
    """
    repo = await find_repo(db, address.owner, address.repo, by=by)
    row = await pull_commit_row(db, repo.id, address.commit)

    manifest = msgspec.Raw(row["manifest"].encode())
    if not include_model:
        manifest = remove_model(manifest)

    return Manifest(row["commit_hash"], manifest, row["description"])


async def pull_commit_row(db: Session, repo_id: UUID, commit: str) -> Record:
    """Return the row of a commit, and count the pull. Raises CommitNotFound."""
    commit_id = await _get_commit_id(db, repo_id, commit)
    row = await db.fetchrow(sql.pull_commit, repo_id=repo_id, id=commit_id)
    if row is None:
        raise CommitNotFound

    return row


async def tag_commit(db: Database, owner: str, handle: str, body: CommitTagRequest, *, by: Actor) -> CommitTag:
    """Set a tag on a commit; a tag that exists moves to it.

    Raises PromptNotFound, PromptOfOthers, CommitNotFound and Invalid.
    """
    if body.tag_name == LATEST:
        raise Invalid.field(["body", "tag_name"], "this name is reserved; choose another")

    repo = await find_repo(db, owner, handle, by=by, to_change=True)
    async with db.transaction() as tx:
        await _keep_repo(tx, repo.id)
        if await tx.fetchval(sql.commit_exists, repo_id=repo.id, id=body.commit_id) is None:
            raise CommitNotFound

        await tx.execute(sql.tag_commit, id=uuid7(), repo_id=repo.id, name=body.tag_name, commit_id=body.commit_id)
        return (await _list_tags(tx, repo.id, body.tag_name))[0]


async def list_tags(db: Session, owner: str, handle: str, *, by: Actor) -> list[CommitTag]:
    """List the tags of a prompt by name. Raises PromptNotFound."""
    repo = await find_repo(db, owner, handle, by=by)
    return await _list_tags(db, repo.id, None)


async def get_tag(db: Session, owner: str, handle: str, name: str, *, by: Actor) -> CommitTag:
    """Return a tag. Raises PromptNotFound and PromptTagNotFound."""
    repo = await find_repo(db, owner, handle, by=by)
    tags = await _list_tags(db, repo.id, name)
    if not tags:
        raise PromptTagNotFound

    return tags[0]


async def delete_tag(db: Session, owner: str, handle: str, name: str, *, by: Actor) -> None:
    """Delete a tag; its commit stays. Raises PromptNotFound, PromptOfOthers and PromptTagNotFound."""
    repo = await find_repo(db, owner, handle, by=by, to_change=True)
    if not await db.execute(sql.delete_tag, repo_id=repo.id, name=name):
        raise PromptTagNotFound


def remove_model(manifest: msgspec.Raw) -> msgspec.Raw:
    """Return the prompt of a manifest that is a prompt followed by a model; other manifests unchanged."""
    if _SEQUENCE.encode() not in bytes(manifest):
        return manifest

    value = msgspec.json.decode(manifest)
    first = value.get("kwargs", {}).get("first") if _get_class_name(value) == _SEQUENCE else None
    return msgspec.Raw(msgspec.json.encode(first)) if "Prompt" in _get_class_name(first) else manifest


def _get_class_name(value: Any) -> str:
    """Return the name of the class that a part of a manifest serializes."""
    path = value.get("id") if isinstance(value, dict) and isinstance(value.get("kwargs"), dict) else None
    return str(path[-1]) if isinstance(path, list) and path else ""


def check_parent(parent: str | None, latest: str) -> None:
    """Check that the parent in a request is the latest commit. Raises ParentOutdated."""
    if parent == LATEST or (parent or "") == latest:
        return
    if not (parent and _SHORT_HASH.fullmatch(parent) and latest.startswith(parent)):
        raise ParentOutdated


async def _get_commit_id(db: Session, repo_id: UUID, commit: str) -> UUID:
    """Return the id of a commit by `latest`, a tag, or the beginning of its hash. Raises CommitNotFound."""
    if commit == LATEST:
        row = await db.fetchrow(sql.latest_commit, repo_id=repo_id)
        commit_id: UUID | None = None if row is None else row["id"]
    else:
        commit_id = await db.fetchval(sql.commit_tagged, repo_id=repo_id, name=commit)

    if commit_id is None and _SHORT_HASH.fullmatch(commit):
        rows = await db.fetch(sql.commits_that_begin, repo_id=repo_id, start=commit)
        commit_id = rows[0]["id"] if len(rows) == 1 else None

    if commit_id is None:
        raise CommitNotFound

    return commit_id


async def _list_commits(db: Session, repo_id: UUID, commit_id: UUID | None, query: CommitQuery) -> list[Commit]:
    page = {"limit": query.limit or _LIMIT, "offset": query.offset}
    rows = await db.fetch(sql.list_commits, repo_id=repo_id, id=commit_id, **page)
    return [Commit(**dict(row), updated_at=row["created_at"]) for row in rows]


async def _list_tags(db: Session, repo_id: UUID, name: str | None) -> list[CommitTag]:
    return [CommitTag(**dict(row)) for row in await db.fetch(sql.list_tags, repo_id=repo_id, name=name)]
