"""Traces from OpenTelemetry: the stock exporter, JSON, several instrumentations' conventions, and bad input."""

import asyncio
import gzip
import json
import math
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid5

import pytest
import pytest_asyncio
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from portside.tracing.otlp_wire import MAX_SPANS
from tests.api.hosted import Hosted, in_new_workspace

TRACE = "0190a0c0000070008000000000000001"
ROOT = "00000000000000aa"
CHILD = "00000000000000bb"
SECOND = 1_000_000_000
AT = 1_790_000_000 * SECOND


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def server(shared_hosted: Hosted) -> AsyncIterator[Hosted]:
    async with in_new_workspace(shared_hosted) as running:
        yield running


async def read_runs(server: Hosted) -> dict[str, dict[str, Any]]:
    rows = await server.db.pool.fetch(
        "select id from runs where name is not null and workspace_id = $1", server.actor.workspace_id
    )
    responses = [await server.client.get(f"/runs/{row['id']}") for row in rows]
    return {run["name"]: run for run in (response.json() for response in responses)}


def value(content: Any) -> dict[str, Any]:
    match content:
        case bool():
            return {"boolValue": content}
        case int():
            return {"intValue": str(content)}
        case float():
            return {"doubleValue": content if math.isfinite(content) else str(content)}
        case list():
            return {"arrayValue": {"values": [value(item) for item in content]}}
        case dict():
            return {"kvlistValue": {"values": pairs(content)}}
        case _:
            return {"stringValue": content}


def pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(content)} for key, content in attributes.items()]


def span(name: str, attributes: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "traceId": TRACE,
        "spanId": ROOT,
        "name": name,
        "startTimeUnixNano": str(AT),
        "endTimeUnixNano": str(AT + SECOND),
        "attributes": pairs(attributes or {}),
        **fields,
    }


def build_nested(depth: int) -> dict[str, Any]:
    """An attribute with lists within lists."""
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(depth):
        value = {"arrayValue": {"values": [value]}}

    return {"key": "deep", "value": value}


async def send(server: Hosted, *spans: dict[str, Any], **headers: str) -> Any:
    body = {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": list(spans)}]}]}
    return await server.client.post("/otel/v1/traces", json=body, headers=headers)


async def run_from(server: Hosted, attributes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = await send(server, span("one", attributes, **fields))
    assert (response.status_code, response.json()) == (200, {})
    return (await read_runs(server))["one"]


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
@pytest.mark.parametrize("prefix", ["", "/api/v1"])
async def test_the_stock_exporter_sends_spans(server: Hosted, compression: Compression, prefix: str):
    headers = {"x-api-key": server.key, "Langsmith-Project": "from otel"}
    # Without a longer limit it drops spans that a busy machine has not taken after 10 s.
    exporter = OTLPSpanExporter(
        f"{server.url}{prefix}/otel/v1/traces", headers=headers, compression=compression, timeout=300
    )
    provider = TracerProvider()

    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")

    def work() -> None:
        with tracer.start_as_current_span("parent", attributes={"input.value": "in", "langsmith.span.tags": "a, b"}):
            with tracer.start_as_current_span("child", attributes={"gen_ai.operation.name": "chat"}):
                pass

            with pytest.raises(ValueError, match="no good"), tracer.start_as_current_span("broken"):
                raise ValueError("no good")

    await asyncio.to_thread(work)
    runs = await read_runs(server)
    parent = runs["parent"]
    child = runs["child"]
    broken = runs["broken"]
    assert (parent["parent_run_id"], parent["inputs"], parent["tags"]) == (None, {"value": "in"}, ["a", "b"])
    assert (child["parent_run_id"], child["run_type"], child["status"]) == (parent["id"], "llm", "success")

    assert child["trace_id"] == parent["trace_id"]
    assert child["dotted_order"].startswith(parent["dotted_order"] + ".")
    assert broken["status"] == "error"
    assert broken["error"].startswith("no good\n\nTraceback")
    assert [record["traces"] for record in await server.usage("project")] == [1]
    assert (await server.usage("project"))[0]["dimensions"]["project_name"] == "from otel"
    provider.shutdown()


async def test_children_may_arrive_before_their_parents_and_twice(server: Hosted):
    root = span("root")
    child = span("child", spanId=CHILD, parentSpanId=ROOT)
    for delivery in ([child], [root], [child, root]):
        assert (await send(server, *delivery)).status_code == 200

    runs = await read_runs(server)
    assert set(runs) == {"root", "child"}
    assert runs["child"]["parent_run_id"] == runs["root"]["id"] == str(uuid5(UUID(TRACE), ROOT))
    assert runs["child"]["dotted_order"].startswith(runs["root"]["dotted_order"] + ".")
    assert {run["trace_id"] for run in runs.values()} == {str(UUID(TRACE))}
    assert [record["traces"] for record in await server.usage("workspace")] == [1]


async def test_a_root_gets_its_run_id_back(server: Hosted):
    run = await run_from(server, {}, spanId=TRACE[:16])
    assert run["id"] == run["trace_id"] == str(UUID(TRACE))


async def test_a_root_has_the_tokens_of_its_trace(server: Hosted):
    # The root's id is not that of the trace.
    model = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 4}
    await send(server, span("root"), span("child", model, spanId=CHILD, parentSpanId=ROOT))

    runs = await read_runs(server)
    assert {name: run["total_tokens"] for name, run in runs.items()} == {"root": 7, "child": 7}


async def test_span_attributes_set_project_type_tags_and_metadata(server: Hosted):
    run = await run_from(
        server,
        {
            "langsmith.trace.session_name": "mine",
            "langsmith.trace.name": "one",
            "langsmith.span.kind": "RETRIEVER",
            "langsmith.span.tags": "x,y",
            "langsmith.metadata.user": "u",
            "traceloop.association.properties.tenant": "t",
            "metadata": '{"k": 1}',
            "service.name": "svc",
        },
    )

    assert (run["run_type"], run["tags"]) == ("retriever", ["x", "y"])
    assert run["extra"]["metadata"] == {"user": "u", "tenant": "t", "k": 1, "service.name": "svc"}
    assert (await server.client.get("/sessions", params={"name": "mine"})).json()[0]["id"] == run["session_id"]


async def test_numbered_attributes_become_messages(server: Hosted):
    run = await run_from(
        server,
        {
            "gen_ai.system": "openai",
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "gpt",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.stop_sequences": ["."],
            "gen_ai.prompt.0.role": "system",
            "gen_ai.prompt.0.content": "be kind",
            "gen_ai.prompt.1.role": "user",
            "gen_ai.prompt.1.content": "hi",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "hello",
            "gen_ai.usage.input_tokens": 3,
            "gen_ai.usage.completion_tokens": 4,
        },
    )

    assert run["run_type"] == "llm"
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert run["inputs"] == {"messages": messages}
    assert run["outputs"] == {"messages": [{"role": "assistant", "content": "hello"}]}

    assert run["extra"] == {
        "metadata": {
            "ls_provider": "openai",
            "ls_model_name": "gpt",
            "usage_metadata": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
        },
        "invocation_params": {"model": "gpt", "temperature": 0.5, "stop": ["."]},
    }


@pytest.mark.parametrize(
    ("attributes", "inputs", "outputs"),
    [
        ({"input.value": '{"a": 1}', "output.value": "text"}, {"a": 1}, {"value": "text"}),
        ({"gen_ai.input.messages": '[{"role": "user"}]'}, {"messages": [{"role": "user"}]}, {}),
        ({"traceloop.entity.input": "{broken"}, {"value": "{broken"}, {}),
        ({"traceloop.entity.output": "[1]"}, {}, {"messages": [1]}),
        (
            {"llm.input_messages.0.message.role": "user", "llm.output_messages.0.message.content": "x"},
            {"messages": [{"role": "user"}]},
            {"messages": [{"content": "x"}]},
        ),
        (
            {"retrieval.documents.0.document.content": "d", "retrieval.documents.0.document.metadata": '{"p": 1}'},
            {},
            {"documents": [{"page_content": "d", "metadata": {"p": 1}, "type": "Document"}]},
        ),
    ],
)
async def test_inputs_and_outputs_are_read_from_attributes(server: Hosted, attributes, inputs, outputs):
    run = await run_from(server, attributes)
    assert (run["inputs"], run["outputs"]) == (inputs, outputs)


async def test_values_that_no_run_can_hold_do_not_refuse_a_span(server: Hosted):
    deep = "[" * 300 + "]" * 300
    number = "1" * 5000
    attributes = {
        "input.value": deep,
        f"gen_ai.prompt.{number}.role": "user",
        "gen_ai.usage.input_tokens": float("nan"),
        "gen_ai.usage.output_tokens": float("inf"),
        "gen_ai.usage.total_tokens": 3.0,
        "metadata": '{"a": ' + deep + "}",
    }

    run = await run_from(server, attributes)
    assert run["inputs"] == {"value": deep}
    assert run["extra"]["metadata"]["usage_metadata"] == {"total_tokens": 3}


async def test_a_span_that_names_itself_as_its_parent_is_a_root(server: Hosted):
    assert (await run_from(server, {}, parentSpanId=ROOT))["parent_run_id"] is None


async def test_events_become_messages(server: Hosted):
    events = [
        {"name": "gen_ai.user.message", "timeUnixNano": str(AT), "attributes": pairs({"content": "hi"})},
        {"name": "gen_ai.choice", "timeUnixNano": str(AT), "attributes": pairs({"message": '{"content": "yo"}'})},
    ]

    run = await run_from(server, {}, events=events)
    assert run["inputs"] == {"messages": [{"role": "user", "content": "hi"}]}
    assert run["outputs"] == {"messages": [{"role": "assistant", "content": "yo"}]}


async def test_an_error_status_sets_the_error(server: Hosted):
    run = await run_from(server, {}, status={"code": 2, "message": "out of tokens"})
    assert (run["status"], run["error"]) == ("error", "out of tokens")


@pytest.mark.parametrize(
    ("content_type", "body", "status", "says"),
    [
        ("application/x-protobuf", b"\xff\xff\xff", 422, "not an ExportTraceServiceRequest"),
        ("application/json", b"{", 422, "Invalid JSON"),
        ("application/json", b'{"resourceSpans": 1}', 422, "resourceSpans"),
        (
            "application/json",
            json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span("x", traceId="zz")]}]}]}),
            422,
            "traceId",
        ),
        (
            "application/json",
            json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span("x", traceId="aa")]}]}]}),
            422,
            "16 bytes",
        ),
        (
            "application/json",
            json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span("x", endTimeUnixNano="soon")]}]}]}),
            422,
            "endTimeUnixNano",
        ),
        (
            "application/json",
            json.dumps(
                {"resourceSpans": [{"scopeSpans": [{"spans": [span("x") | {"attributes": [build_nested(60)]}]}]}]}
            ),
            422,
            "more than 50 levels",
        ),
    ],
)
async def test_malformed_otlp_requests_are_refused(server: Hosted, content_type, body, status, says):
    response = await server.client.post("/otel/v1/traces", content=body, headers={"content-type": content_type})
    assert response.status_code == status
    assert says in response.text
    assert await read_runs(server) == {}


async def test_a_bomb_is_refused(server: Hosted):
    bomb = gzip.compress(b"\x00" * 50_000_000)
    headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
    response = await server.client.post("/otel/v1/traces", content=bomb, headers=headers)
    assert response.status_code == 413


async def test_too_many_spans_are_refused(server: Hosted):
    few = {"traceId": TRACE, "spanId": ROOT}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [few] * (MAX_SPANS + 1)}]}]}
    response = await server.client.post("/otel/v1/traces", json=body)
    assert (response.status_code, f"more than {MAX_SPANS} spans" in response.text) == (422, True)


async def test_an_empty_request_is_answered_in_its_own_format(server: Hosted):
    response = await server.client.post(
        "/otel/v1/traces", content=b"", headers={"content-type": "application/x-protobuf"}
    )

    assert (response.status_code, response.content, response.headers["content-type"]) == (
        200,
        b"",
        "application/x-protobuf",
    )

    response = await server.client.post(
        "/otel/v1/traces", content=b"{}", headers={"content-type": "Application/JSON; charset=utf-8"}
    )

    assert (response.status_code, response.content, response.headers["content-type"]) == (
        200,
        b"{}",
        "application/json",
    )


STAMP = "20261121T020440000000Z"
PARENT, RUN, SDK_RUN = (f"0190a0c0-0000-7000-8000-0000000000{n}" for n in ("aa", "bb", "cc"))
# Of another trace of OpenTelemetry than the run's.
OTHER_TRACE = "0190a0c0000070008000000000000002"


async def test_attributes_place_a_span_below_an_existing_run(server: Hosted):
    order = f"{STAMP}{PARENT}"
    parent = {"id": PARENT, "trace_id": PARENT, "dotted_order": order, "name": "parent", "session_name": "p"}
    response = await server.client.post(
        "/runs/batch", json={"post": [{**parent, "start_time": "2026-11-21T02:04:40Z"}]}
    )
    assert response.status_code == 202

    placed = {
        "langsmith.trace.id": PARENT,
        "langsmith.span.id": RUN,
        "langsmith.span.parent_id": PARENT,
        "langsmith.span.dotted_order": f"{order}.{STAMP}{RUN}",
        "langsmith.trace.session_name": "p",
    }

    attached = {"langsmith.trace.id": PARENT}
    for one in (span("placed", placed), span("attached", attached, spanId=CHILD)):
        assert (await send(server, one)).json() == {}

    runs = await read_runs(server)
    child = runs["placed"]
    assert (child["id"], child["trace_id"], child["parent_run_id"]) == (RUN, PARENT, PARENT)
    assert child["dotted_order"] == f"{order}.{STAMP}{RUN}"
    assert "langsmith.span.id" not in child["extra"]["metadata"]
    assert runs["attached"]["trace_id"] == runs["attached"]["parent_run_id"] == PARENT
    assert runs["attached"]["dotted_order"].startswith(f"{order}.")

    assert [record["traces"] for record in await server.usage("workspace")] == [1]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
async def test_spans_find_a_parent_that_has_an_id_of_its_own(server: Hosted, order: tuple[int, ...]):
    parent = span("parent", {"langsmith.span.id": RUN, "langsmith.trace.id": PARENT}, traceId=OTHER_TRACE)
    child = span("child", {}, spanId=CHILD, parentSpanId=ROOT, traceId=OTHER_TRACE)
    grandchild = span("grandchild", {}, spanId="00000000000000cc", parentSpanId=CHILD, traceId=OTHER_TRACE)
    root = {"id": PARENT, "name": "root", "start_time": "2026-11-21T02:04:40Z"}

    spans = [parent, child, grandchild]
    for index in order:
        assert (await send(server, spans[index])).status_code == 200

    assert (await server.client.post("/runs", json=root)).status_code == 202
    runs = await read_runs(server)
    assert {run["trace_id"] for run in runs.values()} == {PARENT}
    assert (runs["parent"]["id"], runs["parent"]["parent_run_id"]) == (RUN, PARENT)
    assert (runs["child"]["parent_run_id"], runs["grandchild"]["parent_run_id"]) == (RUN, runs["child"]["id"])
    assert runs["grandchild"]["parent_run_ids"] == [PARENT, RUN, runs["child"]["id"]]


@pytest.mark.parametrize("is_reversed", [False, True])
async def test_spans_find_the_runs_of_the_tracing_sdk(server: Hosted, *, is_reversed: bool):
    """The SDK gives the first half of a run's id to the spans below it as the id of their parent."""
    order = f"{STAMP}{PARENT}.{STAMP}{SDK_RUN}"
    made = {"langsmith.span.id": SDK_RUN, "langsmith.trace.id": PARENT, "langsmith.span.dotted_order": order}
    trace = UUID(PARENT).hex

    spans = [
        span("made", made, traceId=trace, spanId="00000000000000dd"),
        span("native", {}, traceId=trace, spanId="00000000000000ee", parentSpanId=UUID(SDK_RUN).hex[:16]),
    ]

    for one in reversed(spans) if is_reversed else spans:
        assert (await send(server, one)).status_code == 200

    runs = await read_runs(server)
    assert runs["native"]["parent_run_ids"] == [PARENT, SDK_RUN]
    assert runs["native"]["dotted_order"].startswith(f"{order}.")


async def test_one_request_needs_no_second_look(server: Hosted):
    parent = span("parent", {"langsmith.span.id": RUN, "langsmith.trace.id": RUN}, traceId=OTHER_TRACE)
    child = span("child", {}, spanId=CHILD, parentSpanId=ROOT, traceId=OTHER_TRACE)
    assert (await send(server, child, parent)).status_code == 200
    runs = await read_runs(server)
    assert (runs["child"]["trace_id"], runs["child"]["parent_run_id"]) == (RUN, RUN)
    assert [record["traces"] for record in await server.usage("workspace")] == [1]


async def test_the_javascript_sdk_names_spans_by_padded_ids(server: Hosted):
    padded = f"00000000-0000-0000-0000-00{ROOT[6:]}"
    root = span("root", {"langsmith.is_root": True}, parentSpanId="00000000000000ff")
    child = span("child", {"langsmith.span.parent_id": padded}, spanId=CHILD, parentSpanId="00000000000000ff")
    for one in (child, root):
        assert (await send(server, one)).status_code == 200

    runs = await read_runs(server)
    assert runs["root"]["parent_run_id"] is None
    assert runs["child"]["parent_run_ids"] == [runs["root"]["id"]]


@pytest.mark.parametrize("order", ["garbage.x", f"{STAMP}{PARENT}", f"{STAMP}{PARENT}.{STAMP}{RUN}"])
async def test_a_place_that_contradicts_itself_is_not_taken(server: Hosted, order: str):
    attributes = {"langsmith.span.id": RUN, "langsmith.trace.id": RUN, "langsmith.span.dotted_order": order}
    response = await send(server, span("lie", attributes), span("honest", spanId=CHILD))
    told = response.json()["partialSuccess"]
    assert (response.status_code, told["rejectedSpans"]) == (200, "0")
    assert told["errorMessage"].startswith("lie: langsmith.span.dotted_order must")
    runs = await read_runs(server)
    assert set(runs) == {"lie", "honest"}

    assert runs["lie"]["trace_id"] == str(UUID(TRACE))
    assert runs["lie"]["extra"]["metadata"]["langsmith.span.id"] == RUN


async def test_one_bad_span_is_refused_alone(server: Hosted):
    bad = span("bad", {"langsmith.trace.session_id": PARENT})
    worse = span("worse", {"langsmith.trace.session_id": "no id"}, spanId="00000000000000cc")
    response = await send(server, bad, worse, span("good", spanId=CHILD))
    assert response.status_code == 200
    told = response.json()["partialSuccess"]
    assert told["rejectedSpans"] == "2"
    assert f"no project {PARENT} exists" in told["errorMessage"]

    assert set(await read_runs(server)) == {"good"}
    refused = await send(server, bad)
    assert (refused.status_code, "no project" in refused.text) == (422, True)

    request = ExportTraceServiceRequest()
    made = request.resource_spans.add().scope_spans.add()
    for n, attributes in enumerate(({"langsmith.trace.session_id": "no id"}, {}), start=1):
        one = made.spans.add(trace_id=bytes.fromhex(OTHER_TRACE), span_id=bytes([n] * 8), name="wire")
        for key, content in attributes.items():
            one.attributes.add(key=key).value.string_value = content

    headers = {"content-type": "application/x-protobuf"}
    response = await server.client.post("/otel/v1/traces", content=request.SerializeToString(), headers=headers)
    answer = ExportTraceServiceResponse.FromString(response.content)
    assert answer.partial_success.rejected_spans == 1


async def test_attachments_of_spans_can_be_downloaded(server: Hosted):
    files = json.dumps([{"name": "pic", "content": "aGk=", "mime_type": "text/plain"}])
    run = await run_from(server, {"langsmith.attachments": files})
    link = run["s3_urls"]["attachment.pic"]["presigned_url"]
    assert (await server.client.get(link)).content == b"hi"
