"""Repositories of prompts: made, found, changed, liked and deleted.

A prompt is addressed as `owner/name`; `-` is the caller's own workspace. What another workspace made public can be
read by whoever has a key of this installation, and changed by nobody but its owner.
"""

from typing import Any
from uuid import UUID

from portside.identity.types import Actor
from portside.kernel.db import Session
from portside.kernel.http.routes import refuse_field
from portside.kernel.ids import uuid7
from portside.prompts.errors import PromptExists, PromptNotFound, PromptOfOthers
from portside.prompts.sql import sql
from portside.prompts.types import Likes, Prompt, PromptList, PromptPatch, PromptQuery, PromptRequest, Settings

_SEPARATORS = str.maketrans(dict.fromkeys("-_./:,;()\n", " "))
_ARCHIVED = {"true": True, "false": False, "allow": None}


async def show_settings(db: Session, *, by: Actor) -> Settings:
    """Return the caller's workspace."""
    row = await db.fetchrow(sql.settings_of_workspace, workspace_id=by.workspace_id)
    if row is None:
        raise PromptNotFound
    return Settings(**dict(row))


async def find_repo(db: Session, owner: str, handle: str, *, by: Actor, to_change: bool = False) -> UUID:
    """Return the id of a prompt that the caller may read, or change.

    Raises PromptNotFound, and PromptOfOthers for one that can be read but not changed.
    """
    row = await db.fetchrow(sql.find_repo, workspace_id=by.workspace_id, owner=owner, handle=handle)
    if row is None:
        raise PromptNotFound
    if to_change and row["workspace_id"] != by.workspace_id:
        raise PromptOfOthers
    repo_id: UUID = row["id"]
    return repo_id


async def list_prompts(db: Session, query: PromptQuery, *, by: Actor) -> PromptList:
    """List the workspace's prompts, what was changed last first unless the query says otherwise."""
    found = await _list(db, query, None, by=by)
    if not found and query.offset:
        whole = await _list(db, PromptQuery(**{**_fields(query), "offset": 0, "limit": 1}), None, by=by)
        return PromptList([], whole[0][1] if whole else 0)
    return PromptList([prompt for prompt, _ in found], found[0][1] if found else 0)


async def show_prompt(db: Session, owner: str, handle: str, *, by: Actor) -> Prompt:
    """Return a prompt, and count that it was looked at. Raises PromptNotFound."""
    repo_id = await find_repo(db, owner, handle, by=by)
    await db.execute(sql.count_view, id=repo_id)
    return await _show(db, repo_id, by=by)


async def create_prompt(db: Session, body: PromptRequest, *, by: Actor) -> Prompt:
    """Make a prompt without commits. Raises PromptExists and Invalid."""
    if body.repo_type != "prompt":
        raise refuse_field("repo_type", "there are repositories of prompts alone")
    made = await db.fetchval(
        sql.create_repo,
        id=uuid7(),
        workspace_id=by.workspace_id,
        handle=body.repo_handle,
        description=body.description or "",
        readme=body.readme or "",
        tags=body.tags or [],
        is_public=body.is_public,
    )
    if made is None:
        raise PromptExists
    return await _show(db, made, by=by)


async def update_prompt(db: Session, owner: str, handle: str, patch: PromptPatch, *, by: Actor) -> Prompt:
    """Change what is said about a prompt. Raises PromptNotFound and PromptOfOthers."""
    repo_id = await find_repo(db, owner, handle, by=by, to_change=True)
    await db.execute(sql.update_repo, id=repo_id, workspace_id=by.workspace_id, **_fields(patch))
    return await _show(db, repo_id, by=by)


async def delete_prompt(db: Session, owner: str, handle: str, *, by: Actor) -> None:
    """Delete a prompt with its commits. Raises PromptNotFound and PromptOfOthers."""
    repo_id = await find_repo(db, owner, handle, by=by, to_change=True)
    await db.execute(sql.delete_repo, id=repo_id, workspace_id=by.workspace_id)


async def like_prompt(db: Session, owner: str, handle: str, *, like: bool, by: Actor) -> Likes:
    """Like a prompt, or not any more; return how many do. Raises PromptNotFound."""
    repo_id = await find_repo(db, owner, handle, by=by)
    await db.execute(sql.like_repo if like else sql.unlike_repo, id=repo_id, liked_by=_liker(by))
    return Likes(await db.fetchval(sql.likes_of_repo, id=repo_id))


async def _show(db: Session, repo_id: UUID, *, by: Actor) -> Prompt:
    found = await _list(db, PromptQuery(), repo_id, by=by)
    if not found:
        raise PromptNotFound
    return found[0][0]


async def _list(db: Session, query: PromptQuery, repo_id: UUID | None, *, by: Actor) -> list[tuple[Prompt, int]]:
    """Return prompts, each with how many there are."""
    rows = await db.fetch(
        sql.list_repos,
        id=repo_id,
        workspace_id=by.workspace_id,
        liked_by=_liker(by),
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
    return [(Prompt(**{name: row[name] for name in row.keys() if name != "total"}), row["total"]) for row in rows]  # noqa: SIM118 - a record iterates over its values


def _liker(by: Actor) -> UUID:
    return by.user_id or by.key_id


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


async def empty_workspace(db: Session, workspace_id: UUID) -> None:
    """Delete all repositories of a workspace, with their commits."""
    await db.execute(sql.empty_workspace, workspace_id=workspace_id)
