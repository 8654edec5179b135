"""Parses the bodies of ingest (multipart, a batch or a single run) into an `IngestBatch` of writes.

What a client may leave out of a posted run is filled in where the batch is enough: a root is its own trace, and a
dotted order names the trace. A run that readers could not show, such as one whose dotted order contradicts its ids, is
refused, and the others of its batch are stored.
"""

from collections.abc import Callable
from uuid import UUID

import msgspec

from portside.kernel.clock import now
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from portside.tracing import bodies
from portside.tracing.bodies import FormPart
from portside.tracing.fields import (
    NULL,
    FeedbackFields,
    RunFields,
    build_dotted_order_part,
    encode_tags,
    limit_objects,
    parse_time,
    parse_uuid,
    read_json,
    to_json_text,
    to_name,
    to_plain_text,
)
from portside.tracing.positions import check_position
from portside.tracing.refused_runs import drop_refused
from portside.tracing.run_merge import PATCH_BITS
from portside.tracing.types import AnyObject, AttachmentWrite, FeedbackWrite, IngestBatch, RefusedRun, RunWrite

_JSON_FIELDS = frozenset({"inputs", "outputs", "events", "extra", "serialized"})
_OBJECT_FIELDS = ("inputs", "outputs", "extra", "serialized")
_MAX_RUNS = 50_000
_MAX_OBJECTS = 4_000_000
_LARGE_BATCH_BYTES = 2_000_000
_decode_events = msgspec.json.Decoder(list[AnyObject]).decode


class BatchBody(msgspec.Struct):
    """The body of POST /runs/batch."""

    post: list[msgspec.Raw] | None = None
    patch: list[msgspec.Raw] | None = None


class _BatchObjects(msgspec.Struct):
    """A batch of which only the kinds of its items are read."""

    post: list[AnyObject] | None = None
    patch: list[AnyObject] | None = None


def parse_run(body: bytes, _content_type: str) -> IngestBatch:
    """Parse the body of POST /runs. Raises Invalid."""
    fields = read_json(body, RunFields, "body")
    return IngestBatch([_complete(_to_run_write(fields, None, is_post=True))])


def build_update_parser(run_id: UUID) -> Callable[[bytes, str], IngestBatch]:
    """Return the parser of PATCH /runs/{run_id}."""

    def parse_update(body: bytes, _content_type: str) -> IngestBatch:
        fields = read_json(body, RunFields, "body")
        return IngestBatch([_complete(_to_run_write(fields, run_id, is_post=False))])

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

    drop_refused(batch)
    return batch


def _add_run(batch: IngestBatch, operation: str, raw: bytes) -> None:
    """Add a run of a batch, or say why it is refused."""
    run_id: UUID | None = None
    try:
        fields = read_json(raw, RunFields, f"body.{operation}")
        run_id = fields.id
        if run_id is None:
            raise Invalid.field(["body", operation, "id"], "Field required", "missing")

        batch.runs.append(_complete(_to_run_write(fields, None, is_post=operation == "post")))
    except Invalid as exc:
        batch.refused.append(RefusedRun(run_id, exc.problems))


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
                self._batch.runs.append(_complete(write))
            except Invalid as exc:
                self._batch.refused.append(RefusedRun(write.id, exc.problems))

        drop_refused(self._batch)
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


def _complete(write: RunWrite) -> RunWrite:
    """Check a write, and fill in what follows from its other fields. Raises Invalid."""
    if write.is_post and write.name is None:
        raise Invalid.field(["body", str(write.id), "name"], "Field required", "missing")

    check_position(write)
    _check_shapes(write)

    if write.is_post:
        _complete_position(write)
    else:
        write.patched = sum(bit for bit, name in PATCH_BITS if getattr(write, name) is not None)
        write.patch_order = write.end_time.timestamp() if write.end_time else 0.0

    return write


def _complete_position(write: RunWrite) -> None:
    """Set the position of a posted root. A child without a dotted order gets its position from its parent later."""
    if write.dotted_order is None and write.parent_run_id is None:
        write.trace_id = write.trace_id or write.id
        write.dotted_order = build_dotted_order_part(write.start_time or now(), write.id)


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
