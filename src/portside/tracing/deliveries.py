"""From the bytes of a request to a delivery: multipart, batch and single runs (contract: hosted API, section f.3).

Fills in what a client may leave out of a posted run: a root is its own trace, a run's place follows from its dotted
order. What needs the database (the project, a place under a parent that came earlier) is left to `ingest`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from uuid import UUID

import msgspec

from portside.kernel.clock import now
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from portside.tracing import encodings, multipart
from portside.tracing.fields import (
    NULL,
    FeedbackFields,
    Fields,
    check_objects,
    json_text,
    moment,
    name_text,
    own_order,
    plain_text,
    read_json,
    uuid_of,
)
from portside.tracing.folding import weigh
from portside.tracing.types import AttachmentWrite, Delivery, FeedbackWrite, RunWrite

_INLINE_BYTES = 128 * 1024
_MAX_DOTTED_ORDER_CHARS = 20_000
_MAX_RUNS = 50_000
_MAX_OBJECTS = 4_000_000
_BIG_FIELDS = frozenset({"inputs", "outputs", "events", "extra", "serialized"})


class Batch(msgspec.Struct):
    """The body of POST /runs/batch."""

    post: list[msgspec.Raw] | None = None
    patch: list[msgspec.Raw] | None = None


async def read(body: bytes, headers: Mapping[str, str], reader: Callable[[bytes, str], Delivery]) -> Delivery:
    """Undo the content encoding and hand body and content type to `reader`; big ones in a thread, off the event loop.

    Raises BodyTooLarge, EncodingBroken, EncodingUnknown and Invalid.
    """
    encoding, content_type = headers.get("content-encoding", ""), headers.get("content-type", "")

    def work() -> Delivery:
        return reader(encodings.decode(body, encoding), content_type)

    if len(body) > _INLINE_BYTES or encoding:
        return await asyncio.to_thread(work)
    return work()


def from_run(body: bytes, _content_type: str) -> Delivery:
    """Read the body of POST /runs."""
    return Delivery([_posted(_write(read_json(body, Fields, "body"), None, is_post=True))])


def from_update(run_id: UUID) -> Callable[[bytes, str], Delivery]:
    """Make the reader of PATCH /runs/{run_id}."""

    def reader(body: bytes, _content_type: str) -> Delivery:
        return Delivery([_patched(_write(read_json(body, Fields, "body"), run_id, is_post=False))])

    return reader


def from_batch(body: bytes, _content_type: str) -> Delivery:
    """Read the body of POST /runs/batch."""
    check_objects(body, _MAX_OBJECTS)
    batch = read_json(body, Batch, "body")
    posts = [_posted(_write(fields, None, is_post=True)) for fields in _each(batch.post, "post")]
    patches = [_patched(_write(fields, None, is_post=False)) for fields in _each(batch.patch, "patch")]
    return Delivery([*posts, *patches])


def from_multipart(body: bytes, content_type: str) -> Delivery:
    """Read the body of POST /runs/multipart."""
    parts = _Parts()
    for part in multipart.parse(body, content_type):
        parts.add(part)
    return parts.finish()


class _Parts:
    """Gathers parts: a run's own part begins a write, the parts of its fields complete the latest one."""

    def __init__(self) -> None:
        self._writes: list[RunWrite] = []
        self._latest: dict[tuple[str, UUID], RunWrite] = {}
        self._delivery = Delivery()

    def add(self, part: multipart.Part) -> None:
        """Take one part. Raises Invalid for a name outside the contract."""
        kind, _, rest = part.name.partition(".")
        id_text, _, field = rest.partition(".")
        match kind, field:
            case "post" | "patch", "":
                fields = read_json(part.data, Fields, part.name)
                self._begin(kind, _write(fields, uuid_of(id_text, part.name), is_post=kind == "post"))
            case "post" | "patch", _:
                self._complete(kind, uuid_of(id_text, part.name), field, part)
            case "feedback", "":
                self._delivery.feedback.append(_feedback(uuid_of(id_text, part.name), part))
            case "attachment", _ if field:
                run_id, content_type = uuid_of(id_text, part.name), plain_text(part.content_type.split(";")[0])
                name, kept_type = name_text(field) or "file", (content_type or "application/octet-stream")[:200]
                self._delivery.attachments.append(AttachmentWrite(run_id, name, kept_type, part.data))
            case _:
                raise Invalid.field(["body", part.name], "is not the name of a part that runs are made of")

    def finish(self) -> Delivery:
        """Return the delivery. Raises Invalid for a posted run that lacks what it must have."""
        self._delivery.runs = [_posted(write) if write.is_post else _patched(write) for write in self._writes]
        return self._delivery

    def _begin(self, kind: str, write: RunWrite) -> None:
        self._writes.append(write)
        self._latest[kind, write.id] = write

    def _complete(self, kind: str, run_id: UUID, field: str, part: multipart.Part) -> None:
        if (kind, run_id) not in self._latest:
            self._begin(kind, RunWrite(id=run_id, is_post=kind == "post"))
        write = self._latest[kind, run_id]
        if field == "error":
            write.error = plain_text(read_json(part.data, object, part.name))
        elif field in _BIG_FIELDS:
            setattr(write, field, json_text(read_json(part.data, msgspec.Raw, part.name)))
        else:
            raise Invalid.field(["body", part.name], f"runs have no field {field}")


def _each(runs: list[msgspec.Raw] | None, where: str) -> Iterator[Fields]:
    """Yield the runs of a batch. Raises Invalid for too many, for one that is none and for one without an id."""
    if len(runs or ()) > _MAX_RUNS:
        raise Invalid.field(["body", where], f"holds more than {_MAX_RUNS} runs")
    for raw in runs or ():
        yield _with_id(read_json(bytes(raw), Fields, f"body.{where}"), where)


def _with_id(fields: Fields, where: str) -> Fields:
    if fields.id is None:
        raise Invalid.field(["body", where, "id"], "Field required", "missing")
    return fields


def _write(fields: Fields, run_id: UUID | None, *, is_post: bool) -> RunWrite:
    """Turn JSON fields into what is stored."""
    run_id = run_id or fields.id or uuid7()
    return RunWrite(
        id=run_id,
        is_post=is_post,
        trace_id=fields.trace_id,
        parent_run_id=None if fields.parent_run_id == run_id else fields.parent_run_id,
        dotted_order=plain_text(fields.dotted_order),
        project_id=fields.session_id,
        session_name=plain_text(fields.session_name),
        reference_example_id=fields.reference_example_id,
        name=name_text(fields.name),
        run_type=name_text(fields.run_type),
        start_time=moment(fields.start_time, "start_time"),
        end_time=moment(fields.end_time, "end_time"),
        tags=None if fields.tags is None else _tags(fields.tags),
        error=None if fields.error is NULL else plain_text(read_json(bytes(fields.error), object, "error")),
        inputs=json_text(fields.inputs),
        outputs=json_text(fields.outputs),
        extra=json_text(fields.extra),
        events=json_text(fields.events),
        serialized=json_text(fields.serialized),
    )


def _tags(tags: Iterable[str]) -> str:
    return msgspec.json.encode([name_text(tag) or "" for tag in tags]).decode()


def _patched(write: RunWrite) -> RunWrite:
    _check_place(write)
    weigh(write)
    return write


def _posted(write: RunWrite) -> RunWrite:
    """Fill in a posted run's place. A child without one waits for its parent (see `ingest`)."""
    if write.name is None:
        raise Invalid.field(["body", str(write.id), "name"], "Field required", "missing")
    _check_place(write)
    if write.dotted_order is None and write.parent_run_id is None:
        write.trace_id = write.trace_id or write.id
        write.dotted_order = own_order(write.start_time or now(), write.id)
    return write


def _check_place(write: RunWrite) -> None:
    """Take the trace from the dotted order where only that was given. Raises Invalid when it holds none."""
    order = write.dotted_order
    if order is None:
        return
    if len(order) > _MAX_DOTTED_ORDER_CHARS:
        raise Invalid.field(["body", "dotted_order"], f"is longer than {_MAX_DOTTED_ORDER_CHARS} characters")
    if write.trace_id is None:
        write.trace_id = uuid_of(order.split(".", 1)[0][-36:], "dotted_order")


def _feedback(feedback_id: UUID, part: multipart.Part) -> FeedbackWrite:
    fields = read_json(part.data, FeedbackFields, part.name)
    return FeedbackWrite(
        id=feedback_id,
        run_id=fields.run_id,
        trace_id=fields.trace_id,
        key=name_text(fields.key) or "",
        body=json_text(read_json(part.data, msgspec.Raw, part.name)) or "{}",
        modified_at=moment(fields.modified_at, "modified_at") or now(),
        extends_trace=fields.extend_trace_retention is not False,
    )
