"""Spans as runs: their ids, their places, their ends.

A run's id follows from its span's, so that a span that is delivered twice is one run, and a child knows its parent's id
before the parent has come. The tracing clients take both ids out of the same run id: such a root gets it back.
"""

from collections.abc import Iterable
from uuid import UUID, uuid5

import msgspec

from portside.kernel.codec import dump_user
from portside.tracing.fields import name_text, own_order, plain_text
from portside.tracing.otlp.attributes import Reading
from portside.tracing.otlp.wire import Span, read_spans
from portside.tracing.types import Delivery, RunWrite

_EXCEPTION = "exception"


def from_otlp(body: bytes, content_type: str, project: str | None) -> Delivery:
    """Read a request; runs go to the project that their span names, else to `project`. Raises Invalid."""
    return Delivery([run_of(span, project) for span in read_spans(body, content_type)])


def run_of(span: Span, project: str | None) -> RunWrite:
    """Make the run of a span. A child is put in its place once its parent is there (see `ingest`)."""
    trace_id, run_id = UUID(bytes=span.trace_id), run_id_of(span.trace_id, span.span_id)
    reading = Reading(span)
    run_type, tags = reading.run_type(), reading.tags()
    inputs, outputs = reading.inputs(), reading.outputs()
    session = reading.project() or project
    name = reading.text("langsmith.trace.name") or span.name or "span"
    is_root = not span.parent_id
    order = own_order(span.start, run_id) if is_root and span.start else None
    return RunWrite(
        id=run_id,
        is_post=True,
        trace_id=trace_id,
        parent_run_id=None if is_root else run_id_of(span.trace_id, span.parent_id),
        dotted_order=order,
        project_id=reading.project_id(),
        session_name=plain_text(session),
        name=name_text(name) or "span",
        run_type=run_type,
        start_time=span.start,
        end_time=span.end,
        tags=msgspec.json.encode([name_text(tag) or "" for tag in tags]).decode() if tags else None,
        error=plain_text(_error(span)),
        inputs=dump_user(inputs).decode(),
        outputs=dump_user(outputs).decode(),
        extra=dump_user(reading.extra()).decode(),
        events=_events(span),
    )


def run_id_of(trace_id: bytes, span_id: bytes) -> UUID:
    """Return the id of a span's run."""
    trace = UUID(bytes=trace_id)
    return trace if span_id == trace_id[:8] else uuid5(trace, span_id.hex())


def _error(span: Span) -> str | None:
    told: Iterable[str] = (
        "\n\n".join(
            str(event.attributes[key])
            for key in ("exception.message", "exception.stacktrace")
            if event.attributes.get(key)
        )
        for event in span.events
        if event.name == _EXCEPTION
    )
    exception = next((text for text in told if text), None)
    return (exception or span.message or "error") if span.is_error or exception else None


def _events(span: Span) -> str | None:
    events = [{"name": e.name, "time": e.at, "attributes": e.attributes} for e in span.events]
    return dump_user(events).decode() if events else None
