"""Ingest: from the body of a request to rows.

1. Parse. A body (multipart, a batch or a single run) becomes an `IngestBatch` of writes. What a client may leave out of
   a posted run is filled in where the batch is enough: a root is its own trace, and a dotted order names the trace. A
   run that readers could not show, such as one whose dotted order contradicts its ids, is refused, and the others of
   its batch are stored.
2. Merge writes for the same run. Requests may arrive twice and in any order, so order and repetition must not matter:
   where a run stands (trace, parent, project) is set once and never moves; for every other field null never wins, a
   patch outweighs a post, and of two patches the one with the later end time wins. `merge_runs` applies the same rule
   in SQL to stored runs, because one statement cannot touch a row twice; tests/db/test_tracing_ingest.py holds the two
   rules equal, and docs/why/traces.md says why both exist.
3. Store runs, traces, feedback and attachments in one transaction. A trace is counted at the first receipt of one of
   its runs, together with that run, so neither exists without the other.

A child may arrive before its parent and without a dotted order. Ingest then writes an empty row for the parent: the two
requests meet on that row, and the one that commits last places the child under its parent, and then the children of
what it placed. A child that is a span of OpenTelemetry may wait for a run whose id it cannot know (`spans.py`).
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

import msgspec
from asyncpg import PostgresError, UniqueViolationError
from msgspec.json import decode as json_decode

from portside.identity.types import Actor
from portside.kernel.clock import now
from portside.kernel.db import Database, Session, Transaction
from portside.kernel.errors import Invalid, PortsideError, Problem, Unavailable
from portside.kernel.ids import uuid7
from portside.kernel.pool import is_conflict, retry_conflicts
from portside.tracing import bodies, projects, spans
from portside.tracing.bodies import DEFAULT_MAX_BYTES, FormPart
from portside.tracing.fields import (
    NULL,
    FeedbackFields,
    RunFields,
    build_dotted_order_part,
    limit_objects,
    parse_time,
    parse_uuid,
    read_json,
    to_json_text,
    to_name,
    to_plain_text,
)
from portside.tracing.pieces import RunPieces
from portside.tracing.positions import check_position
from portside.tracing.sql import sql
from portside.tracing.types import AnyObject, AttachmentWrite, FeedbackWrite, IngestBatch, RefusedRun, RunWrite

# Set once: a run never moves.
POSITION_FIELDS = ("trace_id", "parent_run_id", "dotted_order", "project_id", "session_name", "reference_example_id")
MERGED_FIELDS = (
    "name",
    "run_type",
    "start_time",
    "end_time",
    "tags",
    "error",
    "inputs",
    "outputs",
    "extra",
    "events",
    "serialized",
)
# The bit of each field in `patched`; `merge_runs` has the same numbers.
PATCH_BITS = tuple((1 << index, name) for index, name in enumerate(MERGED_FIELDS))
# COPY has a fixed cost: for fewer runs one statement is faster.
COPY_MIN_RUNS = 50
_TEXT_FIELDS = ("tags", "error", "inputs", "outputs", "extra", "events", "serialized")
_JSON_FIELDS = frozenset({"inputs", "outputs", "events", "extra", "serialized"})
_OBJECT_FIELDS = ("inputs", "outputs", "extra", "serialized")
_MAX_RUNS = 50_000
# How many refused runs a response describes.
_MAX_REFUSALS = 100
_MAX_OBJECTS = 4_000_000
_LARGE_BATCH_BYTES = 2_000_000
_COLUMNS = tuple(name for name in RunWrite.__struct_fields__ if name not in {"is_post", "session_name"})
_COPIED_COLUMNS = tuple(name for name in _COLUMNS if name != "tags")
_FEEDBACK_COLUMNS = tuple(name for name in FeedbackWrite.__struct_fields__ if name != "extends_trace")
_number = attrgetter("int")
_decode_events = msgspec.json.Decoder(list[AnyObject]).decode
# How the texts of interrupts begin; the SQL function `end_of_failed_run` looks at the rest.
_MAY_BE_INTERRUPT = ("GraphInterrupt", "NodeInterrupt", "GraphDrained", "[", "\n\n", "Graph drained: ")


class RunTooLarge(PortsideError):
    """With this request the run would hold more bytes than this server keeps for one run; send smaller runs."""

    status: ClassVar[int] = 413
    code = "run_too_large"


class RunsRefused(Invalid):
    """Some runs were refused, and each problem names its run; the other runs of the request were stored."""

    code = "runs_refused"


class BatchBody(msgspec.Struct):
    """The body of POST /runs/batch."""

    post: list[msgspec.Raw] | None = None
    patch: list[msgspec.Raw] | None = None


class _BatchObjects(msgspec.Struct):
    """A batch of which only the kinds of its items are read."""

    post: list[AnyObject] | None = None
    patch: list[AnyObject] | None = None


# Parse


def parse_run(body: bytes, _content_type: str) -> IngestBatch:
    """Parse the body of POST /runs. Raises Invalid."""
    fields = read_json(body, RunFields, "body")
    return IngestBatch([_complete_post(_to_run_write(fields, None, is_post=True))])


def build_update_parser(run_id: UUID) -> Callable[[bytes, str], IngestBatch]:
    """Return the parser of PATCH /runs/{run_id}."""

    def parse_update(body: bytes, _content_type: str) -> IngestBatch:
        fields = read_json(body, RunFields, "body")
        return IngestBatch([_complete_patch(_to_run_write(fields, run_id, is_post=False))])

    return parse_update


def parse_batch(body: bytes, _content_type: str) -> IngestBatch:
    """Parse the body of POST /runs/batch. Raises Invalid if it is no batch; runs may be refused one by one."""
    limit_objects(body, _MAX_OBJECTS)
    if len(body) > _LARGE_BATCH_BYTES:
        # Millions of values that are no runs are refused at the first one.
        read_json(body, _BatchObjects, "body")

    lists = read_json(body, BatchBody, "body")
    batch = IngestBatch()
    for operation, runs in (("post", lists.post or ()), ("patch", lists.patch or ())):
        if len(runs) > _MAX_RUNS:
            raise Invalid.field(["body", operation], f"holds more than {_MAX_RUNS} runs; send smaller batches")

        for raw in runs:
            _add_run(batch, operation, bytes(raw))

    _drop_refused(batch)
    return batch


def _add_run(batch: IngestBatch, operation: str, raw: bytes) -> None:
    """Add a run of a batch, or say why it is refused."""
    run_id: UUID | None = None
    try:
        fields = read_json(raw, RunFields, f"body.{operation}")
        run_id = fields.id
        if run_id is None:
            raise Invalid.field(["body", operation, "id"], "Field required", "missing")

        write = _to_run_write(fields, None, is_post=operation == "post")
        batch.runs.append(_complete_post(write) if write.is_post else _complete_patch(write))
    except Invalid as exc:
        batch.refused.append(RefusedRun(run_id, exc.problems))


def _drop_refused(batch: IngestBatch) -> None:
    """Drop everything about refused runs: a patch without its post would be half a run."""
    refused = {run.run_id for run in batch.refused}
    if refused:
        batch.runs = [write for write in batch.runs if write.id not in refused]
        batch.attachments = [file for file in batch.attachments if file.run_id not in refused]


def parse_multipart(body: bytes, content_type: str) -> IngestBatch:
    """Parse the body of POST /runs/multipart. Raises Invalid."""
    reader = _MultipartReader()
    for part in bodies.parse_multipart(body, content_type):
        reader.add(part)

    return reader.finish()


class _MultipartReader:
    """Collects the parts of a body: a part for a run begins a write, the parts of its fields add to the latest one."""

    def __init__(self) -> None:
        self._writes: list[RunWrite] = []
        self._latest: dict[tuple[str, UUID], RunWrite] = {}
        self._batch = IngestBatch()

    def add(self, part: FormPart) -> None:
        """Add one part, or say why its run is refused. Raises Invalid for an unknown name."""
        kind, _, rest = part.name.partition(".")
        id_text, _, field = rest.partition(".")

        is_known = kind in {"post", "patch"} or (kind == "feedback" and not field) or (kind == "attachment" and field)
        if not is_known:
            raise Invalid.field(
                ["body", part.name],
                "is not the name of a part; use OPERATION.ID, OPERATION.ID.FIELD or attachment.ID.NAME",
            )

        run_id: UUID | None = None
        try:
            item_id = parse_uuid(id_text, part.name)
            run_id = None if kind == "feedback" else item_id
            self._add(kind, item_id, field, part)
        except Invalid as exc:
            self._batch.refused.append(RefusedRun(run_id, exc.problems))

    def finish(self) -> IngestBatch:
        """Return the batch."""
        for write in self._writes:
            try:
                self._batch.runs.append(_complete_post(write) if write.is_post else _complete_patch(write))
            except Invalid as exc:
                self._batch.refused.append(RefusedRun(write.id, exc.problems))

        _drop_refused(self._batch)
        return self._batch

    def _add(self, kind: str, item_id: UUID, field: str, part: FormPart) -> None:
        if kind == "feedback":
            self._batch.feedback.append(_to_feedback_write(item_id, part))
        elif kind == "attachment":
            name = to_name(field) or "file"
            content_type = to_plain_text(part.content_type.split(";")[0])
            stored_type = (content_type or bodies.UNKNOWN_TYPE)[:200]
            self._batch.attachments.append(AttachmentWrite(item_id, name, stored_type, part.data))
        elif field:
            self._set_field(kind, item_id, field, part)
        else:
            fields = read_json(part.data, RunFields, part.name)
            self._begin(kind, _to_run_write(fields, item_id, is_post=kind == "post"))

    def _begin(self, kind: str, write: RunWrite) -> None:
        self._writes.append(write)
        self._latest[kind, write.id] = write

    def _set_field(self, kind: str, run_id: UUID, field: str, part: FormPart) -> None:
        if (kind, run_id) not in self._latest:
            self._begin(kind, RunWrite(id=run_id, is_post=kind == "post"))

        write = self._latest[kind, run_id]
        if field == "error":
            write.error = to_plain_text(read_json(part.data, object, part.name))
        elif field in _JSON_FIELDS:
            setattr(write, field, to_json_text(read_json(part.data, msgspec.Raw, part.name)))
        else:
            raise Invalid.field(["body", part.name], f"runs have no field {field[:100]}")


def _to_run_write(fields: RunFields, run_id: UUID | None, *, is_post: bool) -> RunWrite:
    run_id = run_id or fields.id or uuid7()
    return RunWrite(
        id=run_id,
        is_post=is_post,
        trace_id=fields.trace_id,
        parent_run_id=None if fields.parent_run_id == run_id else fields.parent_run_id,
        dotted_order=to_plain_text(fields.dotted_order),
        project_id=fields.session_id,
        session_name=to_plain_text(fields.session_name),
        reference_example_id=fields.reference_example_id,
        name=to_name(fields.name),
        run_type=to_name(fields.run_type),
        start_time=parse_time(fields.start_time, "start_time"),
        end_time=parse_time(fields.end_time, "end_time"),
        tags=None if fields.tags is None else encode_tags(fields.tags),
        error=None if fields.error is NULL else to_plain_text(read_json(bytes(fields.error), object, "error")),
        inputs=to_json_text(fields.inputs),
        outputs=to_json_text(fields.outputs),
        extra=to_json_text(fields.extra),
        events=to_json_text(fields.events),
        serialized=to_json_text(fields.serialized),
    )


def encode_tags(tags: Iterable[str]) -> str:
    """Return tags as the JSON text that a `RunWrite` holds."""
    return msgspec.json.encode([to_name(tag) or "" for tag in tags]).decode()


def _complete_patch(write: RunWrite) -> RunWrite:
    check_position(write)
    _check_shapes(write)
    write.patched = sum(bit for bit, name in PATCH_BITS if getattr(write, name) is not None)
    write.patch_order = write.end_time.timestamp() if write.end_time else 0.0
    return write


def _complete_post(write: RunWrite) -> RunWrite:
    """Fill in the position of a posted root. A child without a dotted order gets its position from its parent later.

    Raises Invalid.
    """
    if write.name is None:
        raise Invalid.field(["body", str(write.id), "name"], "Field required", "missing")

    check_position(write)
    _check_shapes(write)

    if write.dotted_order is None and write.parent_run_id is None:
        write.trace_id = write.trace_id or write.id
        write.dotted_order = build_dotted_order_part(write.start_time or now(), write.id)

    return write


def _check_shapes(write: RunWrite) -> None:
    """Raise Invalid for values that no client can read back: the SDKs expect objects, and a list of events."""
    for name in _OBJECT_FIELDS:
        value = getattr(write, name)
        if value is not None and value.lstrip()[:1] != "{":
            raise Invalid.field(["body", str(write.id), name], "must be an object", "type_error")

    if write.events is not None:
        try:
            _decode_events(write.events)
        except msgspec.DecodeError as exc:
            problem = "must be a list of objects"
            raise Invalid.field(["body", str(write.id), "events"], problem, "type_error") from exc


def _to_feedback_write(feedback_id: UUID, part: FormPart) -> FeedbackWrite:
    fields = read_json(part.data, FeedbackFields, part.name)
    return FeedbackWrite(
        id=feedback_id,
        run_id=fields.run_id,
        trace_id=fields.trace_id,
        key=to_name(fields.key) or "",
        body=to_json_text(read_json(part.data, msgspec.Raw, part.name)) or "{}",
        modified_at=parse_time(fields.modified_at, "modified_at") or now(),
        extends_trace=fields.extend_trace_retention is not False,
    )


# Merge


def merge_repeated(writes: Iterable[RunWrite]) -> list[RunWrite]:
    """Return one write per run, sorted by id, so that concurrent batches lock rows in the same order."""
    runs: dict[UUID, RunWrite] = {}
    for write in writes:
        first = runs.setdefault(write.id, write)
        if first is not write:
            _merge_into(first, write)

    # Sorted by their integers, because UUIDs compare themselves in Python code.
    return [runs[run_id] for run_id in sorted(runs, key=_number)]


def _merge_into(target: RunWrite, later: RunWrite) -> None:
    """Merge a later write of the same run into the first one, by the rule above."""
    for name in POSITION_FIELDS:
        if getattr(target, name) is None:
            setattr(target, name, getattr(later, name))

    for bit, name in PATCH_BITS:
        value = getattr(later, name)
        if value is None:
            continue

        keeps = (target.patched & bit, target.patch_order) > (later.patched & bit, later.patch_order)
        if getattr(target, name) is None or not keeps:
            setattr(target, name, value)

    target.patched |= later.patched
    target.patch_order = max(target.patch_order, later.patch_order)
    target.is_post |= later.is_post
    target.is_awaited |= later.is_awaited


# Store


async def store_batch(
    db: Database, batch: IngestBatch, *, by: Actor, tier: str = "longlived", max_run_bytes: int = DEFAULT_MAX_BYTES
) -> None:
    """Store a batch; storing it again changes nothing. Traces of projects without a tier get `tier`.

    Runs of projects that do not exist are added to those that are refused. Raises ProjectContested, RunTooLarge and
    Unavailable.
    """
    await _check_projects(db, by.workspace_id, batch)
    runs = merge_repeated(batch.runs)
    await _resolve_projects(db, by.workspace_id, runs)
    runs = _add_awaited_parents(runs)
    owner = {"workspace_id": by.workspace_id, "api_key_id": by.key_id, "user_id": by.user_id, "tier": tier}
    extras = _Extras(
        batch=batch,
        large=_find_large_writes(runs, max_run_bytes),
        max_run_bytes=max_run_bytes,
        pieces=RunPieces(by.workspace_id),
    )

    await extras.pieces.cut(runs)
    awaited_ids = await _write_until_stored(db, runs, owner, extras)
    awaited_ids += await spans.connect(db, by.workspace_id, batch)

    # Each round places the children of what the round before placed.
    while awaited_ids:
        rows = await db.fetch(sql.place_children, workspace_id=by.workspace_id, ids=awaited_ids)
        awaited_ids = [row["id"] for row in rows if row["is_awaited"]]

    interrupted_ids = [run.id for run in runs if run.error is not None and run.error.startswith(_MAY_BE_INTERRUPT)]
    if interrupted_ids:
        await db.execute(sql.mark_interrupted_traces, workspace_id=by.workspace_id, ids=interrupted_ids)


def raise_for_refused(batch: IngestBatch) -> None:
    """Raise RunsRefused if runs of a batch were refused."""
    if not batch.refused:
        return

    others = ""
    stored_count = len({run.id for run in batch.runs})
    if stored_count == 1:
        others = "; 1 other run was stored"
    elif stored_count:
        others = f"; {stored_count} other runs were stored"

    problems: list[Problem] = []
    for run in batch.refused[:_MAX_REFUSALS]:
        for problem in run.problems:
            loc = problem.loc
            if run.run_id is not None and str(run.run_id) not in map(str, loc):
                loc = [*loc[:1], str(run.run_id), *loc[1:]]

            problems.append(Problem(loc, problem.msg + others, problem.type))

    raise RunsRefused(problems)


def describe_partial_success(batch: IngestBatch) -> tuple[int, str]:
    """Return how many spans were refused, and what to tell about them. Raises RunsRefused if none was stored."""
    if not batch.runs:
        raise_for_refused(batch)

    reasons = [f"{run.run_id}: {problem.msg}" for run in batch.refused[:_MAX_REFUSALS] for problem in run.problems]
    return len(batch.refused), "; ".join([*reasons, *batch.warnings])


class _Extras(NamedTuple):
    """The rest of a batch beside its runs."""

    batch: IngestBatch
    large: list[UUID]
    """The runs whose stored size has to be checked."""
    max_run_bytes: int
    pieces: RunPieces

    def __bool__(self) -> bool:
        return bool(self.batch.feedback or self.batch.attachments or self.large or self.pieces)


async def _write_until_stored(db: Database, runs: list[RunWrite], owner: dict[str, Any], extras: _Extras) -> list[UUID]:
    """Write a batch, again after a conflict with another transaction; return the runs that stored children wait for.

    The tracing SDKs drop a batch whose response is a 409, and send it again after a 503. Raises RunTooLarge, and
    Unavailable if each attempt conflicted.
    """
    copies = _are_probably_new(runs)

    async def write() -> list[UUID]:
        nonlocal copies

        if copies:
            # If one of the runs is stored already, the batch is merged, now and in later attempts.
            with suppress(UniqueViolationError):
                return await _write(db, runs, owner, extras, copies=True)
            copies = False

        return await _write(db, runs, owner, extras, copies=False)

    try:
        return await retry_conflicts(write)()
    except PostgresError as exc:
        if is_conflict(exc):
            raise Unavailable from exc
        raise


async def _write(
    db: Database, runs: list[RunWrite], owner: dict[str, Any], extras: _Extras, *, copies: bool
) -> list[UUID]:
    """Write a whole batch or nothing; return the runs that stored children wait for.

    Raises UniqueViolationError if the runs were to be copied and one exists, and RunTooLarge.
    """
    if not (copies or extras):
        return await _merge_runs(db, runs, owner)

    workspace_id = owner["workspace_id"]
    batch = extras.batch
    async with db.transaction() as tx:
        if extras.pieces:
            await extras.pieces.store(tx)

        write_runs = _copy_runs if copies else _merge_runs
        awaited_ids = await write_runs(tx, runs, owner)
        if extras.pieces:
            await extras.pieces.store_users(tx)

        if extras.large:
            sizes = await tx.fetch(sql.sizes_of_runs, workspace_id=workspace_id, ids=extras.large)
            if any(row["bytes"] > extras.max_run_bytes for row in sizes):
                raise RunTooLarge(
                    f"With this request a run would hold more than {extras.max_run_bytes} bytes, the limit of this "
                    "server for one run (setting INGEST_MAX_RUN_BYTES); send smaller inputs and outputs."
                )

        await write_feedback(tx, workspace_id, batch.feedback)
        await _write_attachments(tx, workspace_id, batch.attachments)

    return awaited_ids


def _find_large_writes(runs: list[RunWrite], max_run_bytes: int) -> list[UUID]:
    """Return the runs whose stored size has to be checked.

    A field is replaced and never appended to. So a run whose writes are all below this share of the limit stays below
    the limit, whatever other requests wrote: each of the text fields has at most 4 bytes for each character.
    """
    share = max_run_bytes // (4 * len(_TEXT_FIELDS))
    return [run.id for run in runs if sum(len(getattr(run, name) or "") for name in _TEXT_FIELDS) > share]


async def _check_projects(db: Session, workspace_id: UUID, batch: IngestBatch) -> None:
    """Refuse the runs of projects that do not exist."""
    project_ids = {run.project_id for run in batch.runs if run.project_id is not None}
    if not project_ids:
        return

    unknown_ids = await projects.find_unknown_projects(db, workspace_id, project_ids)
    for run in batch.runs:
        if run.project_id in unknown_ids:
            problem = f"no project {run.project_id} exists in this workspace"
            batch.refused.append(RefusedRun(run.id, [Problem(["body", "session_id"], problem, "value_error")]))

    _drop_refused(batch)


async def _resolve_projects(db: Session, workspace_id: UUID, runs: list[RunWrite]) -> None:
    """Set the project of each run: by id, else by name. A posted run that names none goes to the default project."""
    for run in runs:
        if run.is_post and run.session_name is None:
            run.session_name = projects.DEFAULT_PROJECT

    unresolved_runs = [run for run in runs if run.project_id is None and run.session_name is not None]
    if not unresolved_runs:
        return

    ids = await projects.ensure_projects(db, workspace_id, {run.session_name or "" for run in unresolved_runs})
    for run in unresolved_runs:
        run.project_id = ids[run.session_name or ""]


def _add_awaited_parents(runs: list[RunWrite]) -> list[RunWrite]:
    """Return the runs with an empty write for each parent whose position its child waits for."""
    parent_ids = {run.parent_run_id for run in runs if run.is_post and run.dotted_order is None and run.parent_run_id}
    if not parent_ids:
        return runs

    parents = [RunWrite(id=parent_id, is_awaited=True) for parent_id in parent_ids]
    return merge_repeated([*runs, *parents])


def _are_probably_new(runs: list[RunWrite]) -> bool:
    """Whether a copy pays: enough runs, all of them posted with their position, so probably none of them is stored."""
    return len(runs) >= COPY_MIN_RUNS and all(run.is_post and run.dotted_order is not None for run in runs)


async def _merge_runs(session: Session, runs: list[RunWrite], owner: dict[str, Any]) -> list[UUID]:
    """Merge runs into the stored ones in one statement, and count their traces."""
    if not runs:
        return []

    columns = {name: _get_column(runs, name) for name in _COLUMNS}
    row = await session.fetchrow(sql.merge_runs, **owner, **columns)
    return [] if row is None else row["awaited"] or []


def _get_column(runs: list[RunWrite], name: str) -> list[Any] | None:
    """Return the values of a field; None if all are null, because an array of nulls costs time to send."""
    values = [getattr(run, name) for run in runs]
    return values if any(value is not None for value in values) else None


async def _copy_runs(tx: Transaction, runs: list[RunWrite], owner: dict[str, Any]) -> list[UUID]:
    """Insert new runs with COPY, and count their traces. Raises UniqueViolationError if one is stored already."""
    workspace_id = owner["workspace_id"]
    rows = [
        (
            workspace_id,
            None if run.tags is None else json_decode(run.tags),
            *(getattr(run, name) for name in _COPIED_COLUMNS),
        )
        for run in runs
    ]

    await tx.copy("runs", ("workspace_id", "tags", *_COPIED_COLUMNS), rows)
    positions = {name: [getattr(run, name) for run in runs] for name in ("id", "trace_id", "project_id")}
    await tx.execute(sql.count_copied_traces, **owner, **positions)

    return []


async def write_feedback(tx: Session, workspace_id: UUID, feedback: list[FeedbackWrite]) -> None:
    """Write feedback; the latest write of an id wins. Feedback makes its trace long-lived unless it says otherwise."""
    by_time = sorted(feedback, key=lambda item: item.modified_at)
    latest = list({item.id: item for item in by_time}.values())
    if latest:
        columns = {name: [getattr(item, name) for item in latest] for name in _FEEDBACK_COLUMNS}
        await tx.execute(sql.write_feedback, workspace_id=workspace_id, **columns)

        run_ids = [item.run_id for item in latest if item.run_id is not None and item.extends_trace]
        if run_ids:
            await tx.execute(sql.extend_traces, workspace_id=workspace_id, run_ids=run_ids)


async def _write_attachments(tx: Session, workspace_id: UUID, attachments: list[AttachmentWrite]) -> None:
    latest = list({(item.run_id, item.name): item for item in attachments}.values())
    if latest:
        columns = {name: [getattr(item, name) for item in latest] for name in AttachmentWrite.__struct_fields__}
        await tx.execute(sql.write_attachments, workspace_id=workspace_id, **columns)
