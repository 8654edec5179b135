"""Where the runs of spans stand: their ids, their traces and their parents.

A run's id is derived from the ids of its trace and its span: a span that arrives twice is one run, and a child knows
the id of its parent before the parent arrives. The tracing SDKs derive both OpenTelemetry ids of a root from its run
id; such a root gets its run id back.

Attributes of the tracing SDKs (`langsmith.span.id` and others) place a span below an existing run, and give it an id of
its own. Spans below it do not know that id, so ingest is told how to find the run (`spans.py`).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from portside.kernel.errors import Invalid
from portside.tracing.otlp_wire import Span
from portside.tracing.positions import check_position
from portside.tracing.types import IngestBatch, RunWrite, SpanAlias, SpanParent

_TRACE = "langsmith.trace.id"
_RUN = "langsmith.span.id"
_PARENT = "langsmith.span.parent_id"
_ORDER = "langsmith.span.dotted_order"
_IS_ROOT = "langsmith.is_root"
PLACES = (_TRACE, _RUN, _PARENT, _ORDER, _IS_ROOT)
"""The attributes that say where a span stands."""
# The tracing SDK sends its own runs as spans of this instrumentation. The spans below them have these attributes too.
_SDK_SCOPE = "langsmith"
_MAX_WARNINGS = 10
# The JavaScript SDK writes the id of a span as a UUID that begins with 8 zero bytes.
_PADDING = bytes(8)


class _Place(NamedTuple):
    """What the attributes of a span say about its place. None leaves it to OpenTelemetry's own ids."""

    run_id: UUID | None = None
    trace_id: UUID | None = None
    parent_run_id: UUID | None = None
    dotted_order: str | None = None
    is_root: bool = False


class SpanPlaces:
    """The places of the spans of one request."""

    _NOWHERE = _Place()

    def __init__(self, spans: Iterable[Span]) -> None:
        self.warnings: list[str] = []
        self._spans = {(span.trace_id, span.span_id): span for span in spans}
        self._places: dict[tuple[bytes, bytes], _Place] = {}
        self._traces: dict[tuple[bytes, bytes], UUID] = {}

        for key, span in self._spans.items():
            if not span.attributes.keys().isdisjoint(PLACES):
                self._add_place(key, span)

    def get_run_id(self, span: Span) -> UUID:
        """Return the id of a span's run."""
        place = self._get_place(span)
        return place.run_id or derive_run_id(span.trace_id, span.span_id)

    def get_parent_run_id(self, span: Span) -> UUID | None:
        """Return the id of the parent's run, or None for a root."""
        place = self._get_place(span)
        if place.parent_run_id is not None:
            return place.parent_run_id

        if _is_root(span, place):
            is_root_of_trace = place.is_root or place.trace_id in {None, self.get_run_id(span)}
            # A span that names only its trace is below the root of that trace.
            return None if is_root_of_trace else place.trace_id

        parent = self._spans.get((span.trace_id, span.parent_id))
        return derive_run_id(span.trace_id, span.parent_id) if parent is None else self.get_run_id(parent)

    def get_trace_id(self, span: Span) -> UUID | None:
        """Return the trace of a span's run; None for a run below one whose trace is not known yet."""
        place = self._get_place(span)
        if place.trace_id is not None:
            return place.trace_id
        if place.parent_run_id is not None:
            return None
        if place.run_id is not None and _is_root(span, place):
            return place.run_id

        return self._find_inherited_trace(span)

    def get_dotted_order(self, span: Span) -> str | None:
        """Return the dotted order that the attributes give."""
        return self._get_place(span).dotted_order

    def is_placed(self, span: Span) -> bool:
        """Whether the attributes say where the span stands."""
        return _get_key(span) in self._places

    def add_relations(self, span: Span, batch: IngestBatch) -> None:
        """Tell ingest how this span and the spans above and below it find each other."""
        place = self._get_place(span)
        derived_id = derive_run_id(span.trace_id, span.span_id)

        is_below_span = place.parent_run_id is None and place.dotted_order is None and not _is_root(span, place)
        if is_below_span and (span.trace_id, span.parent_id) not in self._places:
            parent_id = derive_run_id(span.trace_id, span.parent_id)
            batch.span_parents.append(SpanParent(parent_id, UUID(bytes=span.trace_id), span.parent_id))

        if place.run_id is None or place.run_id == derived_id:
            return

        trace_id = place.trace_id or UUID(bytes=span.trace_id)
        id_of_sdk = derive_run_id(trace_id.bytes, place.run_id.bytes[:8])
        batch.span_aliases.append(SpanAlias(derived_id, place.run_id))
        batch.span_aliases.append(SpanAlias(id_of_sdk, place.run_id))

        if span.scope != _SDK_SCOPE:
            # A child of a later request reads here which run this span became.
            batch.runs.append(RunWrite(id=derived_id, parent_run_id=place.run_id))

    def _get_place(self, span: Span) -> _Place:
        return self._places.get(_get_key(span), self._NOWHERE)

    def _add_place(self, key: tuple[bytes, bytes], span: Span) -> None:
        """Read the attributes of a span. Where they contradict each other, OpenTelemetry's own ids count."""
        try:
            place = _read_place(span)
        except Invalid as exc:
            if len(self.warnings) < _MAX_WARNINGS:
                name = span.name[:100] or "span"
                problem = exc.problems[0].msg
                self.warnings.append(f"{name}: {_ORDER} {problem}. The span was stored where its parent span is")

            return

        if place != self._NOWHERE:
            self._places[key] = place

    def _find_inherited_trace(self, span: Span) -> UUID:
        """Return the trace of the nearest span above that is in the request and names one, else OpenTelemetry's."""
        keys: set[tuple[bytes, bytes]] = set()
        trace_id: UUID | None = None
        current: Span | None = span
        while current is not None and trace_id is None:
            key = _get_key(current)
            place = self._places.get(key, self._NOWHERE)
            trace_id = self._traces.get(key) or place.trace_id

            if key in keys or place.parent_run_id is not None:
                break

            keys.add(key)
            current = self._spans.get((current.trace_id, current.parent_id))

        trace_id = trace_id or UUID(bytes=span.trace_id)
        self._traces.update(dict.fromkeys(keys, trace_id))
        return trace_id


def derive_run_id(trace_id: bytes, span_id: bytes) -> UUID:
    """Return the run id that is derived from the ids of a span."""
    trace = UUID(bytes=trace_id)
    return trace if span_id == trace_id[:8] else uuid5(trace, span_id.hex())


def _get_key(span: Span) -> tuple[bytes, bytes]:
    return span.trace_id, span.span_id


def _is_root(span: Span, place: _Place) -> bool:
    # A span that names itself as its parent would wait for itself.
    return place.is_root or span.parent_id in {b"", span.span_id}


def _read_place(span: Span) -> _Place:
    """Return what attributes say. An id that is no UUID is not read. Raises Invalid if they contradict each other."""
    run_id = _read_uuid(span, _RUN)
    trace_id = _read_uuid(span, _TRACE)
    parent_run_id = _read_uuid(span, _PARENT)

    order = span.attributes.get(_ORDER)
    if not isinstance(order, str) or not order:
        is_root = span.attributes.get(_IS_ROOT) in {True, "true"} and parent_run_id is None
        if parent_run_id == run_id:
            parent_run_id = None

        return _Place(run_id=run_id, trace_id=trace_id, parent_run_id=parent_run_id, is_root=is_root)

    write = RunWrite(
        id=run_id or _read_last_id(order), trace_id=trace_id, parent_run_id=parent_run_id, dotted_order=order
    )
    check_position(write)

    return _Place(
        run_id=write.id,
        trace_id=write.trace_id,
        parent_run_id=write.parent_run_id,
        dotted_order=write.dotted_order,
        is_root=write.parent_run_id is None,
    )


def _read_last_id(order: str) -> UUID:
    try:
        return UUID(order[-36:])
    except ValueError:
        return UUID(int=0)


def _read_uuid(span: Span, name: str) -> UUID | None:
    value: Any = span.attributes.get(name)
    try:
        uuid = UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None

    if uuid is not None and uuid.bytes.startswith(_PADDING) and uuid.int:
        return derive_run_id(span.trace_id, uuid.bytes[8:])

    return uuid
