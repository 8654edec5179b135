"""Tracing projects: made on demand by name, listed, deleted.

Control makes one for every deployment in its own transaction; ingest makes those that runs name.
"""

from collections.abc import Iterable
from typing import Annotated
from uuid import UUID

import msgspec

from portside.kernel.db import Session
from portside.kernel.errors import Conflict, Invalid
from portside.kernel.ids import uuid7
from portside.tracing.sql import sql
from portside.tracing.types import Project, TracerSession

DEFAULT_PROJECT = "default"
MAX_NAME_CHARS = 500
_TRIES = 3


class ProjectContested(Conflict):
    """The project is being made and deleted at the same time; send the request again."""

    code = "project_contested"


class ProjectQuery(msgspec.Struct):
    """Which projects to list; the filters that are not acted on yet are refused."""

    name: str | None = None
    name_contains: str | None = None
    id: list[UUID] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    offset: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0
    metadata: str | None = None
    filter: str | None = None
    reference_dataset: list[str] | None = None
    tag_value_id: list[str] | None = None


async def ensure_project(db: Session, workspace_id: UUID, name: str) -> Project:
    """Return the project of this name, made if need be, whoever else makes it at the same time.

    Raises Invalid for a name that no project can have.
    """
    found = await ensure_projects(db, workspace_id, [name])
    return Project(found[name], name)


async def ensure_projects(db: Session, workspace_id: UUID, names: Iterable[str]) -> dict[str, UUID]:
    """Return the ids of the projects of these names, made if need be. Raises Invalid and ProjectContested."""
    wanted = sorted({_checked(name) for name in names})
    for _ in range(_TRIES):
        rows = await db.fetch(sql.projects_by_name, workspace_id=workspace_id, names=wanted)
        found: dict[str, UUID] = {row["name"]: row["id"] for row in rows}
        missing = [name for name in wanted if name not in found]
        if not missing:
            return found
        ids = [uuid7() for _ in missing]
        await db.execute(sql.insert_projects, workspace_id=workspace_id, ids=ids, names=missing)
    raise ProjectContested


async def check_projects(db: Session, workspace_id: UUID, ids: set[UUID]) -> None:
    """Raise Invalid unless all are projects of the workspace."""
    rows = await db.fetch(sql.projects_by_id, workspace_id=workspace_id, ids=sorted(ids))
    unknown = ids - {row["id"] for row in rows}
    if unknown:
        raise Invalid.field(["body", "session_id"], f"no project {min(unknown)} exists in this workspace")


async def list_projects(db: Session, workspace_id: UUID, query: ProjectQuery) -> list[TracerSession]:
    """List projects, newest first. Raises Invalid for a filter that is not acted on yet."""
    for name in ("metadata", "filter", "reference_dataset", "tag_value_id"):
        if getattr(query, name):
            raise Invalid.field(["query", name], "this filter is not supported yet", "not_supported")
    rows = await db.fetch(
        sql.list_projects,
        workspace_id=workspace_id,
        ids=query.id,
        name=query.name,
        name_contains=query.name_contains,
        limit=query.limit,
        offset=query.offset,
    )
    return [TracerSession(**dict(row)) for row in rows]


async def delete_project(db: Session, workspace_id: UUID, project_id: UUID) -> None:
    """Delete a project and its runs; what was billed stays. Nothing happens where there is none."""
    await db.execute(sql.delete_project, workspace_id=workspace_id, project_id=project_id)
    await db.execute(sql.delete_runs_of_project, workspace_id=workspace_id, project_id=project_id)


def _checked(name: str) -> str:
    if not name or len(name) > MAX_NAME_CHARS or "\x00" in name:
        raise Invalid.field(["body", "session_name"], f"a project name has 1 to {MAX_NAME_CHARS} characters")
    return name
