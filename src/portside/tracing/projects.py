"""Tracing projects: created on demand by name or by request, changed and deleted.

`control` creates a project for every deployment in its own transaction; ingest creates the projects that runs name.
`project_lists.py` lists them with their statistics.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from asyncpg import UniqueViolationError

from portside.kernel.clock import Moment
from portside.kernel.db import Session
from portside.kernel.errors import Conflict, Invalid, NotFound, Unavailable
from portside.kernel.ids import uuid7
from portside.tracing.fields import to_utc
from portside.tracing.sql import sql
from portside.tracing.types import ProjectRef, TracerSession

DEFAULT_PROJECT = "default"
MAX_NAME_CHARS = 500
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
Description = Annotated[str, msgspec.Meta(max_length=20_000)]
_TRIES = 3
_WRITABLE = (
    "name",
    "description",
    "extra",
    "start_time",
    "default_dataset_id",
    "reference_dataset_id",
    "trace_tier",
)


class ProjectContested(Unavailable):
    """Another request deletes the project at the same time; send the request again."""

    # Not a conflict (409): the tracing SDKs drop a batch that gets one, and send a batch again that gets a 503.

    code = "project_contested"


class ProjectExists(Conflict):
    """A project with this name or id exists already; choose another, or send upsert=true."""

    code = "project_exists"


class ProjectNotFound(NotFound):
    """Project not found"""  # noqa: D415 - the exact text that clients know

    code = "project_not_found"


class ProjectRequest(msgspec.Struct):
    """A project to create."""

    name: Name
    id: UUID | None = None
    description: Description | None = None
    extra: dict[str, Any] | None = None
    start_time: Moment | None = None
    default_dataset_id: UUID | None = None
    reference_dataset_id: UUID | None = None
    trace_tier: Literal["shortlived", "longlived"] | None = None


class ProjectPatch(msgspec.Struct):
    """Changes of a project; null leaves a field unchanged."""

    name: Name | None = None
    description: Description | None = None
    extra: dict[str, Any] | None = None
    start_time: Moment | None = None
    end_time: Moment | None = None
    default_dataset_id: UUID | None = None
    reference_dataset_id: UUID | None = None
    trace_tier: Literal["shortlived", "longlived"] | None = None


class CreateQuery(msgspec.Struct):
    """Whether to change an existing project of the same name."""

    upsert: bool = False


class ProjectsToDelete(msgspec.Struct):
    """The projects to delete."""

    session_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=1000)]


async def ensure_project(db: Session, workspace_id: UUID, name: str) -> ProjectRef:
    """Return the project with this name; create it if it does not exist.

    Raises Invalid for an invalid name, and ProjectContested.
    """
    ids = await ensure_projects(db, workspace_id, [name])
    return ProjectRef(id=ids[name], name=name)


async def ensure_projects(db: Session, workspace_id: UUID, names: Iterable[str]) -> dict[str, UUID]:
    """Return the ids of the projects with these names; create missing ones. Raises Invalid and ProjectContested."""
    distinct_names = sorted(set(names))
    for name in distinct_names:
        _check_name(name)

    for _ in range(_TRIES):
        rows = await db.fetch(sql.projects_by_name, workspace_id=workspace_id, names=distinct_names)
        ids_by_name: dict[str, UUID] = {row["name"]: row["id"] for row in rows}
        missing_names = [name for name in distinct_names if name not in ids_by_name]
        if not missing_names:
            return ids_by_name

        ids = [uuid7() for _ in missing_names]
        await db.execute(sql.insert_projects, workspace_id=workspace_id, ids=ids, names=missing_names)

    raise ProjectContested


async def check_projects(db: Session, workspace_id: UUID, ids: set[UUID]) -> None:
    """Check that the projects exist in the workspace. Raises Invalid."""
    unknown_ids = await find_unknown_projects(db, workspace_id, ids)
    if unknown_ids:
        raise Invalid.field(["body", "session_id"], f"no project {min(unknown_ids)} exists in this workspace")


async def find_unknown_projects(db: Session, workspace_id: UUID, ids: set[UUID]) -> set[UUID]:
    """Return the ids of which the workspace has no project."""
    rows = await db.fetch(sql.projects_by_id, workspace_id=workspace_id, ids=sorted(ids))
    return ids - {row["id"] for row in rows}


async def get_project(db: Session, workspace_id: UUID, project_id: UUID) -> TracerSession:
    """Return a project. Raises ProjectNotFound."""
    row = await db.fetchrow(sql.project_by_id, workspace_id=workspace_id, project_id=project_id)
    if row is None:
        raise ProjectNotFound

    return TracerSession(**dict(row))


async def create_project(db: Session, workspace_id: UUID, body: ProjectRequest, *, upsert: bool) -> TracerSession:
    """Create a project; with `upsert`, change an existing one of the same name. Raises ProjectExists and Invalid."""
    _check_name(body.name)
    columns = _to_columns(body, _WRITABLE)
    project_id = await db.fetchval(sql.create_project, id=body.id or uuid7(), workspace_id=workspace_id, **columns)
    if project_id is None and upsert:
        rows = await db.fetch(sql.projects_by_name, workspace_id=workspace_id, names=[body.name])
        if rows:
            project_id = rows[0]["id"]
            owner = {"workspace_id": workspace_id, "project_id": project_id}
            await db.fetchval(sql.update_project, **owner, **columns, end_time=None)

    if project_id is None:
        raise ProjectExists

    return await get_project(db, workspace_id, project_id)


async def update_project(db: Session, workspace_id: UUID, project_id: UUID, patch: ProjectPatch) -> TracerSession:
    """Change a project. Raises ProjectNotFound, ProjectExists when another has the name, and Invalid."""
    if patch.name is not None:
        _check_name(patch.name)

    columns = _to_columns(patch, (*_WRITABLE, "end_time"))
    owner = {"workspace_id": workspace_id, "project_id": project_id}
    try:
        updated_id = await db.fetchval(sql.update_project, **owner, **columns)
    except UniqueViolationError as exc:
        raise ProjectExists from exc

    project = await get_project(db, workspace_id, project_id)
    if updated_id is None:
        raise ProjectExists

    return project


async def delete_projects(db: Session, workspace_id: UUID, ids: list[UUID]) -> None:
    """Delete projects and their runs; billing records stay. Unknown ids are ignored."""
    await db.execute(sql.delete_projects, workspace_id=workspace_id, ids=ids)


def _check_name(name: str) -> None:
    if not name or len(name) > MAX_NAME_CHARS or "\x00" in name:
        raise Invalid.field(["body", "session_name"], f"a project name has 1 to {MAX_NAME_CHARS} characters")


def _to_columns(body: ProjectRequest | ProjectPatch, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a request; times without an offset are in UTC."""
    values = {name: getattr(body, name) for name in names}
    return {name: to_utc(value, name) if isinstance(value, datetime) else value for name, value in values.items()}
