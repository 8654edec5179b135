"""Tracing projects: made on demand by name, or asked for; changed, deleted. `project_lists` finds them.

Control makes one for every deployment in its own transaction; ingest makes those that runs name.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from asyncpg import UniqueViolationError

from portside.kernel.db import Session
from portside.kernel.errors import Conflict, Invalid, NotFound
from portside.kernel.ids import uuid7
from portside.tracing.fields import aware
from portside.tracing.sql import sql
from portside.tracing.types import Project, TracerSession

DEFAULT_PROJECT = "default"
MAX_NAME_CHARS = 500
_TRIES = 3
_WRITABLE = (
    "name", "description", "extra", "start_time", "default_dataset_id", "reference_dataset_id", "trace_tier",
)  # fmt: skip


class ProjectContested(Conflict):
    """The project is being made and deleted at the same time; send the request again."""

    code = "project_contested"


class ProjectExists(Conflict):
    """A project of this name or id exists already; choose another, or send upsert=true."""

    code = "project_exists"


class ProjectNotFound(NotFound):
    """Project not found"""  # noqa: D415 - the exact text that clients know

    code = "project_not_found"


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
Description = Annotated[str, msgspec.Meta(max_length=20_000)]


class ProjectRequest(msgspec.Struct):
    """What to make a project of."""

    name: Name
    id: UUID | None = None
    description: Description | None = None
    extra: dict[str, Any] | None = None
    start_time: datetime | None = None
    default_dataset_id: UUID | None = None
    reference_dataset_id: UUID | None = None
    trace_tier: Literal["shortlived", "longlived"] | None = None


class ProjectPatch(msgspec.Struct):
    """What to change of a project; null means unchanged."""

    name: Name | None = None
    description: Description | None = None
    extra: dict[str, Any] | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    default_dataset_id: UUID | None = None
    reference_dataset_id: UUID | None = None
    trace_tier: Literal["shortlived", "longlived"] | None = None


class CreateQuery(msgspec.Struct):
    """Whether a project of the name may be there already."""

    upsert: bool = False


class ProjectsToDelete(msgspec.Struct):
    """The projects to delete."""

    session_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=1000)]


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


async def show_project(db: Session, workspace_id: UUID, project_id: UUID) -> TracerSession:
    """Return a project. Raises ProjectNotFound."""
    row = await db.fetchrow(sql.project_by_id, workspace_id=workspace_id, project_id=project_id)
    if row is None:
        raise ProjectNotFound
    return TracerSession(**dict(row))


async def create_project(db: Session, workspace_id: UUID, body: ProjectRequest, *, upsert: bool) -> TracerSession:
    """Make a project; with `upsert` change the one that has its name. Raises ProjectExists and Invalid."""
    _checked(body.name)
    wanted = _said(body, _WRITABLE)
    made = await db.fetchval(sql.create_project, id=body.id or uuid7(), workspace_id=workspace_id, **wanted)
    if made is None and upsert:
        found = await db.fetch(sql.projects_by_name, workspace_id=workspace_id, names=[body.name])
        if found:
            made = found[0]["id"]
            owner = {"workspace_id": workspace_id, "project_id": made}
            await db.fetchval(sql.update_project, **owner, **wanted, end_time=None)
    if made is None:
        raise ProjectExists
    return await show_project(db, workspace_id, made)


async def update_project(db: Session, workspace_id: UUID, project_id: UUID, patch: ProjectPatch) -> TracerSession:
    """Change a project. Raises ProjectNotFound, ProjectExists when another has the name, and Invalid."""
    if patch.name is not None:
        _checked(patch.name)
    wanted = _said(patch, (*_WRITABLE, "end_time"))
    owner = {"workspace_id": workspace_id, "project_id": project_id}
    try:
        changed = await db.fetchval(sql.update_project, **owner, **wanted)
    except UniqueViolationError as exc:
        raise ProjectExists from exc
    project = await show_project(db, workspace_id, project_id)
    if changed is None:
        raise ProjectExists
    return project


async def delete_projects(db: Session, workspace_id: UUID, ids: list[UUID]) -> None:
    """Delete projects and their runs; what was billed stays. Those that are not there are passed over."""
    await db.execute(sql.delete_projects, workspace_id=workspace_id, ids=ids)
    await db.execute(sql.delete_runs_of_projects, workspace_id=workspace_id, ids=ids)


def _checked(name: str) -> str:
    if not name or len(name) > MAX_NAME_CHARS or "\x00" in name:
        raise Invalid.field(["body", "session_name"], f"a project name has 1 to {MAX_NAME_CHARS} characters")
    return name


def _said(body: ProjectRequest | ProjectPatch, names: Iterable[str]) -> dict[str, Any]:
    """Return what a request says; times without an offset are in UTC."""
    values = {name: getattr(body, name) for name in names}
    return {name: aware(value) if isinstance(value, datetime) else value for name, value in values.items()}
