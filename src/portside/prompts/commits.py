"""Commits of prompts: a chain of manifests, each named by a hash of all that came before it; and tags on them."""

import hashlib
import re
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from portside.identity.types import Actor
from portside.kernel.db import Database, Session
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from portside.prompts.errors import (
    CommitNotFound,
    NothingToCommit,
    ParentOutdated,
    PromptNotFound,
    PromptTagNotFound,
)
from portside.prompts.repos import find_repo
from portside.prompts.sql import sql
from portside.prompts.types import (
    LATEST,
    Commit,
    CommitList,
    CommitQuery,
    CommitRequest,
    CommitTag,
    Manifest,
    TagRequest,
)

_LIMIT = 100
_SHORT_HASH = re.compile(r"[0-9a-f]{8,64}")
_SEQUENCE = "RunnableSequence"
_canonical = msgspec.json.Encoder(order="deterministic").encode


class CommitAddress(NamedTuple):
    """Where a commit is: `owner/repo:commit`."""

    owner: str
    repo: str
    commit: str


async def create_commit(db: Database, owner: str, handle: str, body: CommitRequest, *, by: Actor) -> Commit:
    """Write a manifest after the latest one.

    Raises PromptNotFound, PromptOfOthers, ParentOutdated where the parent is another commit than the latest, and
    NothingToCommit where the manifest is the latest one's.
    """
    repo_id = await find_repo(db, owner, handle, by=by, to_change=True)
    manifest_hash = hashlib.sha256(_canonical(body.manifest)).hexdigest()
    async with db.transaction() as tx:
        if await tx.fetchval(sql.lock_repo, repo_id=repo_id, workspace_id=by.workspace_id) is None:
            raise PromptNotFound
        latest = await tx.fetchrow(sql.latest_commit, repo_id=repo_id)
        latest_hash = "" if latest is None else latest["commit_hash"]
        _check_parent(body.parent_commit, latest_hash)
        if latest is not None and latest["manifest_hash"] == manifest_hash:
            raise NothingToCommit
        commit_id = uuid7()
        await tx.execute(
            sql.create_commit,
            id=commit_id,
            repo_id=repo_id,
            number=1 if latest is None else latest["number"] + 1,
            parent_id=None if latest is None else latest["id"],
            commit_hash=hashlib.sha256(f"{latest_hash}\n{manifest_hash}".encode()).hexdigest(),
            manifest_hash=manifest_hash,
            manifest=msgspec.json.encode(body.manifest).decode(),
            description=body.description,
        )
        return (await _list(tx, repo_id, commit_id, CommitQuery()))[0]


async def list_commits(db: Session, owner: str, handle: str, query: CommitQuery, *, by: Actor) -> CommitList:
    """List the commits of a prompt, newest first. Raises PromptNotFound."""
    repo_id = await find_repo(db, owner, handle, by=by)
    return CommitList(await _list(db, repo_id, None, query), await db.fetchval(sql.count_commits, repo_id=repo_id))


async def pull_commit(db: Session, address: CommitAddress, *, include_model: bool, by: Actor) -> Manifest:
    """Return a commit by `latest`, a tag, its hash or the first 8 characters of that, and count that it was pulled.

    Raises PromptNotFound and CommitNotFound.
    """
    repo_id = await find_repo(db, address.owner, address.repo, by=by)
    row = await db.fetchrow(sql.pull_commit, repo_id=repo_id, id=await _find_commit(db, repo_id, address.commit))
    if row is None:
        raise CommitNotFound
    manifest = msgspec.Raw(row["manifest"].encode())
    if not include_model:
        manifest = without_model(manifest)
    return Manifest(row["commit_hash"], manifest, row["description"])


async def tag_commit(db: Session, owner: str, handle: str, body: TagRequest, *, by: Actor) -> CommitTag:
    """Put a tag on a commit, wherever it was before. Raises PromptNotFound, PromptOfOthers, CommitNotFound, Invalid."""
    if body.tag_name == LATEST:
        raise Invalid.field(["body", "tag_name"], "this means a commit already; choose another name")
    repo_id = await find_repo(db, owner, handle, by=by, to_change=True)
    if await db.fetchval(sql.commit_exists, repo_id=repo_id, id=body.commit_id) is None:
        raise CommitNotFound
    await db.execute(sql.tag_commit, id=uuid7(), repo_id=repo_id, name=body.tag_name, commit_id=body.commit_id)
    return (await _tags(db, repo_id, body.tag_name))[0]


async def list_tags(db: Session, owner: str, handle: str, *, by: Actor) -> list[CommitTag]:
    """List the tags of a prompt by name. Raises PromptNotFound."""
    return await _tags(db, await find_repo(db, owner, handle, by=by), None)


async def show_tag(db: Session, owner: str, handle: str, name: str, *, by: Actor) -> CommitTag:
    """Return a tag. Raises PromptNotFound and PromptTagNotFound."""
    found = await _tags(db, await find_repo(db, owner, handle, by=by), name)
    if not found:
        raise PromptTagNotFound
    return found[0]


async def delete_tag(db: Session, owner: str, handle: str, name: str, *, by: Actor) -> None:
    """Take a tag away; its commit stays. Raises PromptNotFound, PromptOfOthers and PromptTagNotFound."""
    repo_id = await find_repo(db, owner, handle, by=by, to_change=True)
    if not await db.execute(sql.delete_tag, repo_id=repo_id, name=name):
        raise PromptTagNotFound


def without_model(manifest: msgspec.Raw) -> msgspec.Raw:
    """Return the prompt alone of a manifest that is a prompt followed by a model."""
    if _SEQUENCE.encode() not in bytes(manifest):
        return manifest
    value = msgspec.json.decode(manifest)
    first = value.get("kwargs", {}).get("first") if _kind(value) == _SEQUENCE else None
    return msgspec.Raw(msgspec.json.encode(first)) if "Prompt" in _kind(first) else manifest


def _kind(value: Any) -> str:
    """Return the class that a part of a manifest stands for."""
    place = value.get("id") if isinstance(value, dict) and isinstance(value.get("kwargs"), dict) else None
    return str(place[-1]) if isinstance(place, list) and place else ""


def _check_parent(given: str | None, latest: str) -> None:
    """Raise ParentOutdated unless the parent that a request names is the latest commit."""
    if given == LATEST or (given or "") == latest:
        return
    if not (given and _SHORT_HASH.fullmatch(given) and latest.startswith(given)):
        raise ParentOutdated


async def _find_commit(db: Session, repo_id: UUID, commit: str) -> UUID:
    if commit == LATEST:
        row = await db.fetchrow(sql.latest_commit, repo_id=repo_id)
        found = None if row is None else row["id"]
    else:
        found = await db.fetchval(sql.commit_tagged, repo_id=repo_id, name=commit)
    if found is None and _SHORT_HASH.fullmatch(commit):
        rows = await db.fetch(sql.commits_that_begin, repo_id=repo_id, start=commit)
        found = rows[0]["id"] if len(rows) == 1 else None
    if found is None:
        raise CommitNotFound
    commit_id: UUID = found
    return commit_id


async def _list(db: Session, repo_id: UUID, commit_id: UUID | None, query: CommitQuery) -> list[Commit]:
    page = {"limit": query.limit or _LIMIT, "offset": query.offset}
    rows = await db.fetch(sql.list_commits, repo_id=repo_id, id=commit_id, **page)
    return [Commit(**dict(row), updated_at=row["created_at"]) for row in rows]


async def _tags(db: Session, repo_id: UUID, name: str | None) -> list[CommitTag]:
    return [CommitTag(**dict(row)) for row in await db.fetch(sql.list_tags, repo_id=repo_id, name=name)]
