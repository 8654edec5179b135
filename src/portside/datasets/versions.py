"""Versions of datasets: the moments at which examples changed, and tags that name some of them."""

import re
from datetime import datetime
from uuid import UUID

from portside.datasets.datasets import get_dataset, lock_dataset
from portside.datasets.errors import VersionNotFound
from portside.datasets.sql import sql
from portside.datasets.types import DatasetVersionsQuery, Difference, DiffQuery, Version, VersionAt, VersionTagRequest
from portside.kernel.clock import in_utc, now
from portside.kernel.db import Database, Session, Transaction
from portside.kernel.errors import Invalid

LATEST = "latest"
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d")
# The plus sign of an offset arrives as a space if the client does not escape it.
_SPACED_OFFSET = re.compile(r" (\d\d:?\d\d)$")


async def begin_version(
    tx: Transaction, workspace_id: UUID, dataset_id: UUID, moment: datetime | None = None
) -> datetime:
    """Begin the next version of a dataset, which the caller has locked, and return its moment.

    A version that is carried over from another server has its moment. Raises Invalid if it is not the latest then.
    """
    owner = {"workspace_id": workspace_id, "dataset_id": dataset_id}
    as_of: datetime | None = await tx.fetchval(sql.begin_version, **owner, as_of=moment)
    if as_of is None:
        raise Invalid.field(
            ["query", "as_of"], "must be later than the versions that the dataset has, and not in the future"
        )

    await tx.execute(sql.note_change, **owner, as_of=as_of)
    return as_of


async def resolve_moment(
    db: Session,
    workspace_id: UUID,
    dataset_id: UUID | None,
    as_of: str | None,
    where: tuple[str, str] = ("query", "as_of"),
) -> datetime | None:
    """Return the moment of a tag or a time; None for the latest version. Errors name the field at `where`.

    Raises Invalid for malformed input, and VersionNotFound for an unknown tag.
    """
    if as_of is None or as_of == LATEST:
        return None
    if _MOMENT.match(as_of):
        return _parse_moment(as_of, where)
    if dataset_id is None:
        raise Invalid.field(where, "a tag needs the dataset: name it in `dataset`")

    moment: datetime | None = await db.fetchval(
        sql.version_tagged, workspace_id=workspace_id, dataset_id=dataset_id, tag=as_of
    )
    if moment is None:
        raise VersionNotFound

    return moment


async def list_versions(
    db: Session, workspace_id: UUID, dataset_id: UUID, query: DatasetVersionsQuery
) -> list[Version]:
    """List the versions of a dataset, newest first. Raises DatasetNotFound."""
    await get_dataset(db, workspace_id, dataset_id)
    page = {"search": query.search, "limit": query.limit, "offset": query.offset}
    rows = await db.fetch(sql.list_versions, workspace_id=workspace_id, dataset_id=dataset_id, **page)
    return [Version(**dict(row)) for row in rows]


async def get_version(db: Session, workspace_id: UUID, dataset_id: UUID, query: VersionAt) -> Version:
    """Return the version that has a tag, or the last one until a moment. Raises VersionNotFound and Invalid."""
    if (query.as_of is None) == (query.tag is None):
        raise Invalid.field(["query", "as_of"], "send either as_of or tag")

    moment = await resolve_moment(db, workspace_id, dataset_id, query.tag or query.as_of)
    return await _get_version_at(db, workspace_id, dataset_id, moment)


async def tag_version(db: Database, workspace_id: UUID, dataset_id: UUID, body: VersionTagRequest) -> Version:
    """Tag the version of exactly this moment; the tag leaves its previous version.

    Raises DatasetNotFound, VersionNotFound and Invalid.
    """
    if body.tag == LATEST or _MOMENT.match(body.tag):
        raise Invalid.field(["body", "tag"], "this name is reserved; choose another")

    async with db.transaction() as tx:
        await lock_dataset(tx, workspace_id, dataset_id)
        moment = await resolve_moment(tx, workspace_id, dataset_id, body.as_of, ("body", "as_of"))
        version = await _get_version_at(tx, workspace_id, dataset_id, moment)

        as_of = version.as_of if moment is None else moment
        owner = {"workspace_id": workspace_id, "dataset_id": dataset_id}
        if not await tx.execute(sql.tag_version, **owner, tag=body.tag, as_of=as_of):
            raise VersionNotFound

        return await _get_version_at(tx, workspace_id, dataset_id, as_of)


async def diff_versions(db: Session, workspace_id: UUID, dataset_id: UUID, query: DiffQuery) -> Difference:
    """Return the changes of examples between two versions. Raises DatasetNotFound and VersionNotFound."""
    await get_dataset(db, workspace_id, dataset_id)

    moments = []
    for field in ("from_version", "to_version"):
        moment = await resolve_moment(db, workspace_id, dataset_id, getattr(query, field), ("query", field))
        if moment is None:
            latest = await _get_version_at(db, workspace_id, dataset_id, None)
            moment = latest.as_of

        moments.append(moment)

    before, after = moments
    rows = await db.fetch(
        sql.diff_versions, workspace_id=workspace_id, dataset_id=dataset_id, before=before, after=after
    )

    difference = Difference([], [], [])
    for row in rows:
        if row["is_added"]:
            difference.examples_added.append(row["id"])
        elif row["is_removed"]:
            difference.examples_removed.append(row["id"])
        else:
            difference.examples_modified.append(row["id"])

    return difference


async def find_fixed_moment(db: Session, workspace_id: UUID, dataset_id: UUID, as_of: datetime | None) -> datetime:
    """Return the moment of the last version until `as_of`: its examples stay the same, whatever changes from now on.

    A version that begins later is later than this moment. Without any version it is the current time.
    """
    owner = {"workspace_id": workspace_id, "dataset_id": dataset_id}
    moment: datetime | None = await db.fetchval(sql.version_at, **owner, as_of=as_of)
    return moment or min(as_of or now(), now())


async def _get_version_at(db: Session, workspace_id: UUID, dataset_id: UUID, moment: datetime | None) -> Version:
    owner = {"workspace_id": workspace_id, "dataset_id": dataset_id}
    row = await db.fetchrow(sql.version_at, **owner, as_of=moment)
    if row is None or row["as_of"] is None:
        raise VersionNotFound

    tags = [row["tag"] for row in await db.fetch(sql.tags_of_version, **owner, as_of=row["as_of"])]
    return Version(as_of=row["as_of"], tags=tags, number=row["number"])


def _parse_moment(text: str, where: tuple[str, str]) -> datetime:
    try:
        return in_utc(datetime.fromisoformat(_SPACED_OFFSET.sub(r"+\1", text)))
    except (ValueError, OverflowError) as exc:
        raise Invalid.field(where, "must be a tag or an ISO 8601 time") from exc
