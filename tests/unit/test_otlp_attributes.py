"""Attributes of OpenTelemetry's spans become the fields of runs, in the conventions of each instrumentation."""

import json
from typing import Any

import pytest

from portside.tracing import otlp_wire
from portside.tracing.otlp_runs import parse_otlp
from portside.tracing.otlp_usage import read_usage, reread_extra
from portside.tracing.otlp_values import nest
from portside.tracing.otlp_wire import JSON
from portside.tracing.types import IngestBatch, RunWrite

CHAT = {"gen_ai.usage.input_tokens": 1000, "gen_ai.usage.output_tokens": 50}
INFERENCE = {"llm.token_count.prompt": 1000, "llm.token_count.completion": 50}
QUESTION = {"role": "user", "parts": [{"type": "text", "content": "What is it?"}]}
VERCEL = {"ai.usage.inputTokens": 1000, "ai.usage.outputTokens": 50}
COUNTS = {"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050}
CACHED = {**COUNTS, "input_token_details": {"cache_read": 800, "cache_creation": 100}}
READ = {**COUNTS, "input_token_details": {"cache_read": 800}}
REASONED = {**COUNTS, "output_token_details": {"reasoning": 20}}
HEARD = {**COUNTS, "input_token_details": {"audio": 30}, "output_token_details": {"audio": 40}}


def value(content: Any) -> dict[str, Any]:
    match content:
        case bool():
            return {"boolValue": content}
        case int():
            return {"intValue": str(content)}
        case float():
            return {"doubleValue": content}
        case list():
            return {"arrayValue": {"values": [value(item) for item in content]}}
        case dict():
            return {"kvlistValue": {"values": pairs(content)}}
        case _:
            return {"stringValue": content}


def pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": value(content)} for name, content in attributes.items()]


def parse(attributes: dict[str, Any], events: Any = (), **resource: Any) -> IngestBatch:
    span = {
        "traceId": "0190a0c0000070008000000000000001",
        "spanId": "00000000000000aa",
        "name": "span",
        "startTimeUnixNano": "1790000000000000000",
        "attributes": pairs(attributes),
        "events": [{"name": name, "attributes": pairs(fields)} for name, fields in events],
    }

    process = {"attributes": pairs(resource)}
    body = {"resourceSpans": [{"resource": process, "scopeSpans": [{"scope": {"name": "s"}, "spans": [span]}]}]}
    return parse_otlp(json.dumps(body).encode(), JSON, None)


def parse_run(attributes: dict[str, Any], events: Any = ()) -> RunWrite:
    (run,) = parse(attributes, events).runs
    return run


def parse_inputs(attributes: dict[str, Any], events: Any = ()) -> Any:
    return json.loads(parse_run(attributes, events).inputs or "null")


def parse_extra(attributes: dict[str, Any]) -> Any:
    return json.loads(parse_run(attributes).extra or "null")


# Tokens


@pytest.mark.parametrize(
    ("attributes", "usage"),
    [
        # Semantic conventions
        (CHAT | {"gen_ai.usage.cache_read.input_tokens": 800, "gen_ai.usage.cache_creation.input_tokens": 100}, CACHED),
        (CHAT | {"gen_ai.usage.reasoning.output_tokens": 20}, REASONED),
        # Strands
        (CHAT | {"gen_ai.usage.cache_read_input_tokens": 800, "gen_ai.usage.cache_write_input_tokens": 100}, CACHED),
        # Traceloop
        (CHAT | {"gen_ai.usage.cache_read_input_tokens": 800, "gen_ai.usage.cache_creation_input_tokens": 100}, CACHED),
        (CHAT | {"gen_ai.usage.reasoning_tokens": 20}, REASONED),
        (CHAT | {"llm.usage.reasoning_tokens": 20, "llm.usage.total_tokens": 1050}, REASONED),
        # Pydantic AI
        (
            CHAT | {"gen_ai.usage.details.cache_read_tokens": 800, "gen_ai.usage.details.cache_write_tokens": 100},
            CACHED,
        ),
        (CHAT | {"gen_ai.usage.details.reasoning_tokens": 20, "gen_ai.usage.details.output_tokens": 7}, REASONED),
        (CHAT | {"gen_ai.usage.details.thoughts_tokens": 20, "gen_ai.usage.details.text_tokens": 9}, REASONED),
        (CHAT | {"gen_ai.usage.details.input_audio_tokens": 30, "gen_ai.usage.details.output_audio_tokens": 40}, HEARD),
        (
            READ | CHAT | {"gen_ai.usage.details.cache_audio_read_tokens": 9, "gen_ai.usage.cache_read_tokens": 800},
            READ,
        ),
        # OpenInference
        (
            INFERENCE
            | {"llm.token_count.prompt_details.cache_read": 800, "llm.token_count.prompt_details.cache_write": 100},
            CACHED,
        ),
        (INFERENCE | {"llm.token_count.prompt_details.cache_input": 800, "llm.token_count.total": 1050}, READ),
        (INFERENCE | {"llm.token_count.completion_details.reasoning": 20}, REASONED),
        (
            INFERENCE | {"llm.token_count.prompt_details.audio": 30, "llm.token_count.completion_details.audio": 40},
            HEARD,
        ),
        # Vercel 4, 5 and 6
        ({"ai.usage.promptTokens": 1000, "ai.usage.completionTokens": 50}, COUNTS),
        (VERCEL | {"ai.usage.cachedInputTokens": 800, "ai.usage.totalTokens": 1050}, READ),
        (VERCEL | {"ai.usage.reasoningTokens": 20, "ai.usage.outputTokenDetails.textTokens": 30}, REASONED),
        (
            VERCEL
            | {
                "ai.usage.inputTokenDetails.cacheReadTokens": 800,
                "ai.usage.inputTokenDetails.cacheWriteTokens": 100,
                "ai.usage.inputTokenDetails.noCacheTokens": 100,
            },
            CACHED,
        ),
        (VERCEL | {"ai.usage.outputTokenDetails.reasoningTokens": 20}, REASONED),
        ({"ai.usage.tokens": 7}, {"input_tokens": 7, "total_tokens": 7}),
        # Logfire
        (
            CHAT
            | {
                "gen_ai.usage.raw": json.dumps(
                    {
                        "prompt_tokens": 7,
                        "prompt_tokens_details": {"cached_tokens": 800, "audio_tokens": None},
                        "completion_tokens_details": {"accepted_prediction_tokens": 3},
                    }
                )
            },
            READ,
        ),
        # The tracing SDKs
        ({"langsmith.usage_metadata": json.dumps(CACHED)}, CACHED),
        ({"langsmith.usage_metadata": CACHED}, CACHED),
        ({"langsmith.metadata.usage_metadata": json.dumps(CACHED)}, CACHED),
        (
            {
                "langsmith.metadata.usage_metadata.input_tokens": 1000,
                "langsmith.metadata.usage_metadata.output_tokens": 50,
                "langsmith.metadata.usage_metadata.input_token_details.cache_read": 800,
            },
            READ,
        ),
        (CHAT | {"gen_ai.usage.input_token_details": "{'cache_read': 800, 'cache_creation': 100}"}, CACHED),
        (CHAT | {"gen_ai.usage.output_token_details": '{"reasoning": 20}'}, REASONED),
        # A cache for an hour
        (
            CHAT | {"gen_ai.usage.cache_creation.ephemeral_1h_input_tokens": 5},
            {**COUNTS, "input_token_details": {"ephemeral_1h_input_tokens": 5}},
        ),
        # Text, and numbers that are no counts
        ({"gen_ai.usage.input_tokens": "1000", "gen_ai.usage.output_tokens": " 50 "}, COUNTS),
        (CHAT | {"gen_ai.usage.cache_read_tokens": "800", "gen_ai.usage.cost": 0.5}, READ),
        (CHAT | {"gen_ai.usage.cache_read_tokens": -1, "gen_ai.usage.total_tokens": -5}, COUNTS),
        (
            {"gen_ai.usage.input_tokens": -5, "gen_ai.usage.output_tokens": 50},
            {"output_tokens": 50, "total_tokens": 50},
        ),
        ({"gen_ai.usage.input_tokens": float("nan"), "gen_ai.usage.total_tokens": 1e300}, {}),
        ({"gen_ai.usage.total_tokens": 1050, "gen_ai.usage.output_tokens": 50}, COUNTS),
        # Input tokens that were reported without those of the cache
        (
            {
                "gen_ai.usage.input_tokens": 100,
                "gen_ai.usage.output_tokens": 50,
                "gen_ai.usage.total_tokens": 1050,
                "gen_ai.usage.cache_read_input_tokens": 800,
                "gen_ai.usage.cache_write_input_tokens": 100,
            },
            CACHED,
        ),
        (
            {
                "gen_ai.usage.input_tokens": 200,
                "gen_ai.usage.output_tokens": 50,
                "gen_ai.usage.total_tokens": 250,
                "gen_ai.usage.cache_read_input_tokens": 800,
            },
            READ,
        ),
        # The same, where only the total shows it: there are more of them than of those of the cache
        (
            CHAT | {"gen_ai.usage.total_tokens": 1850, "gen_ai.usage.cache_read_input_tokens": 800},
            READ | {"input_tokens": 1800, "total_tokens": 1850},
        ),
        # Counts of a whole agent
        ({"gen_ai.aggregated_usage.input_tokens": 5}, {}),
    ],
)
def test_token_counts_are_read_in_every_convention(attributes: dict[str, Any], usage: dict[str, Any]) -> None:
    assert read_usage(attributes)[0] == usage


def test_counts_that_were_read_are_not_repeated_in_the_metadata() -> None:
    attributes = {"langsmith.span.kind": "llm", **CHAT, "gen_ai.usage.cache_read.input_tokens": 800}
    attributes |= {"langsmith.metadata.usage_metadata": json.dumps(READ), "gen_ai.usage.details.text_tokens": 9}
    assert parse_extra(attributes) == {"metadata": {"gen_ai.usage.details.text_tokens": 9, "usage_metadata": READ}}


def test_stored_attributes_are_read_once() -> None:
    stored = json.dumps({"metadata": {"usage_metadata": COUNTS, "gen_ai.usage.cache_read_tokens": 800}, "n": 1})
    again = reread_extra(stored)
    assert again is not None
    assert json.loads(again)["metadata"]["usage_metadata"] == READ
    assert reread_extra(again) is None

    for nothing in ('{"metadata": {"a": 1}}', "[]", "{", json.dumps({"metadata": {"usage_metadata": COUNTS}})):
        assert reread_extra(nothing) is None


# Messages


@pytest.mark.parametrize(
    ("attributes", "events", "message"),
    [
        (
            {
                "gen_ai.completion.0.role": "assistant",
                "gen_ai.completion.0.tool_calls.0.name": "f",
                "gen_ai.completion.0.tool_calls.0.arguments": "{}",
                "gen_ai.completion.0.tool_calls.1.name": "g",
            },
            (),
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}, {"name": "g"}]},
        ),
        (
            {
                "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "f",
                "llm.output_messages.0.message.tool_calls.0.tool_call.id": "1",
            },
            (),
            {"tool_calls": [{"function": {"name": "f"}, "id": "1"}]},
        ),
        (
            {
                "llm.output_messages.0.message.contents.0.message_content.type": "text",
                "llm.output_messages.0.message.contents.0.message_content.text": "hi",
                "llm.output_messages.0.message.contents.1.message_content.text": "you",
            },
            (),
            {"content": [{"type": "text", "text": "hi"}, {"text": "you"}]},
        ),
        (
            {"gen_ai.completion.0.message.role": "assistant", "gen_ai.completion.0.message.content": "hi"},
            (),
            {"role": "assistant", "content": "hi"},
        ),
        (
            {},
            [("gen_ai.choice", {"message.content": "ok", "tool_calls.0.function.name": "f", "finish_reason": "stop"})],
            {
                "role": "assistant",
                "content": "ok",
                "tool_calls": [{"function": {"name": "f"}}],
                "finish_reason": "stop",
            },
        ),
        (
            {},
            [("gen_ai.choice", {"message": '[{"text": "hello"}]'})],
            {"role": "assistant", "content": [{"text": "hello"}]},
        ),
        ({}, [("gen_ai.choice", {"message": "hello"})], {"role": "assistant", "content": "hello"}),
        (
            {},
            [("gen_ai.choice", {"gen_ai.event.content": '{"message": {"content": "yo"}}'})],
            {"role": "assistant", "content": "yo"},
        ),
        (
            {},
            [("gen_ai.assistant.message", {"gen_ai.system": "openai", "content": "yo"})],
            {"role": "assistant", "content": "yo"},
        ),
        (
            {},
            [("gen_ai.content.completion", {"gen_ai.completion": '{"role": "assistant", "content": "yo"}'})],
            {"role": "assistant", "content": "yo"},
        ),
        ({"gen_ai.output.messages": '[{"role": "assistant", "parts": []}]'}, (), {"role": "assistant", "parts": []}),
        (
            {},
            [("gen_ai.client.inference.operation.details", {"gen_ai.output.messages": '[{"role": "assistant"}]'})],
            {"role": "assistant"},
        ),
        (
            {"ai.response.text": "hi", "ai.response.toolCalls": '[{"toolName": "f"}]', "ai.response.reasoning": "hm"},
            (),
            {"role": "assistant", "content": "hi", "reasoning": "hm", "tool_calls": [{"toolName": "f"}]},
        ),
        (
            {"events": '[{"event.name": "gen_ai.choice", "message": {"role": "assistant", "content": "yo"}}]'},
            (),
            {"role": "assistant", "content": "yo"},
        ),
        (
            {"pydantic_ai.all_messages": '[{"role": "assistant", "content": "yo"}]'},
            (),
            {"role": "assistant", "content": "yo"},
        ),
    ],
)
def test_answers_are_messages(attributes: dict[str, Any], events: Any, message: dict[str, Any]) -> None:
    run = parse_run({"langsmith.span.kind": "llm", **attributes}, events)
    assert json.loads(run.outputs or "") == {"messages": [message]}
    assert json.loads(run.extra or "") == {"metadata": {}}


@pytest.mark.parametrize(
    ("attributes", "events", "inputs"),
    [
        (
            {"gen_ai.prompt.1.message.content": "b", "gen_ai.prompt.0.message.content": "a"},
            (),
            {"messages": [{"content": "a"}, {"content": "b"}]},
        ),
        (
            {
                "gen_ai.system_instructions": '[{"type": "text", "content": "be kind"}]',
                "gen_ai.input.messages": '[{"role": "user"}]',
            },
            (),
            {"messages": [{"role": "system", "parts": [{"type": "text", "content": "be kind"}]}, {"role": "user"}]},
        ),
        (
            {},
            [("gen_ai.tool.message", {"content": '[{"text": "5"}]', "id": "c1"}), ("gen_ai.choice", {"message": "x"})],
            {"messages": [{"role": "tool", "content": [{"text": "5"}], "id": "c1", "tool_call_id": "c1"}]},
        ),
        (
            {},
            [("gen_ai.assistant.message", {"content": "a"}), ("gen_ai.choice", {"message": "x"})],
            {"messages": [{"role": "assistant", "content": "a"}]},
        ),
        (
            {"ai.prompt.messages": '[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]'},
            (),
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        ),
        ({"ai.prompt": '{"system": "be kind", "prompt": "hi"}'}, (), {"system": "be kind", "prompt": "hi"}),
        (
            {"pydantic_ai.all_messages": '[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]'},
            (),
            {"messages": [{"role": "user", "content": "hi"}]},
        ),
        (
            # A message of the user with the result of a tool is no question.
            {
                "pydantic_ai.all_messages": json.dumps(
                    [
                        QUESTION,
                        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "get"}]},
                        {"role": "user", "parts": [{"type": "tool_call_response", "id": "c1", "result": "5"}]},
                        {"role": "assistant", "parts": [{"type": "text", "content": "It is 5."}]},
                    ]
                )
            },
            (),
            {"messages": [QUESTION]},
        ),
        ({"request_data": '{"messages": [], "model": "m"}'}, (), {"messages": [], "model": "m"}),
        (
            {"embedding.embeddings.0.embedding.text": "a", "embedding.embeddings.1.embedding.text": "b"},
            (),
            {"texts": ["a", "b"]},
        ),
        ({"ai.values": ['"a"', '"b"']}, (), {"texts": ['"a"', '"b"']}),
        ({"gen_ai.retrieval.query.text": "q"}, (), {"query": "q"}),
        (
            {"reranker.query": "q", "reranker.input_documents.0.document.content": "d"},
            (),
            {"query": "q", "documents": [{"page_content": "d", "metadata": {}, "type": "Document"}]},
        ),
        ({"input.value": "x", "gen_ai.prompt.0": "no message"}, (), {"value": "x"}),
    ],
)
def test_inputs_are_read(attributes: dict[str, Any], events: Any, inputs: dict[str, Any]) -> None:
    assert parse_inputs(attributes, events) == inputs


@pytest.mark.parametrize(
    ("attributes", "name", "inputs", "outputs"),
    [
        (
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "get",
                "gen_ai.tool.call.id": "c1",
                "gen_ai.tool.call.arguments": '{"a": 1}',
                "gen_ai.tool.call.result": "sunny",
            },
            "span",
            {"a": 1},
            {"value": "sunny"},
        ),
        (
            {"gen_ai.tool.name": "get", "tool_arguments": '{"a": 1}', "tool_response": "[1, 2]"},
            "span",
            {"a": 1},
            {"value": [1, 2]},
        ),
        (
            {
                "ai.operationId": "ai.toolCall",
                "ai.toolCall.name": "get",
                "ai.toolCall.args": '{"a": 1}',
                "ai.toolCall.result": '{"b": 2}',
            },
            "get",
            {"a": 1},
            {"b": 2},
        ),
        (
            {"openinference.span.kind": "TOOL", "tool.name": "get", "input.value": '{"a": 1}', "output.value": "x"},
            "get",
            {"a": 1},
            {"value": "x"},
        ),
    ],
)
def test_tools_have_arguments_and_a_result(
    attributes: dict[str, Any], name: str, inputs: dict[str, Any], outputs: dict[str, Any]
) -> None:
    run = parse_run(attributes)
    assert (run.run_type, run.name) == ("tool", name)
    assert (json.loads(run.inputs or ""), json.loads(run.outputs or "")) == (inputs, outputs)


# Other fields


@pytest.mark.parametrize(
    ("attributes", "run_type"),
    [
        ({"ai.operationId": "ai.generateText", "ai.model.id": "m", "ai.usage.inputTokens": 5}, "chain"),
        ({"ai.operationId": "ai.generateText.doGenerate", "gen_ai.request.model": "m"}, "llm"),
        ({"ai.operationId": "ai.streamObject.doStream"}, "llm"),
        ({"ai.operationId": "ai.embed.doEmbed", "gen_ai.request.model": "m"}, "embedding"),
        ({"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "m"}, "chain"),
        ({"gen_ai.operation.name": "retrieval"}, "retriever"),
        ({"traceloop.llm.request.type": "embedding"}, "embedding"),
        ({"llm.prompt_template.variables": "{}", "input.value": "x"}, "prompt"),
        ({"gen_ai.request.model": "m"}, "llm"),
        ({"agent_name": "a", "model_name": "m"}, "chain"),
    ],
)
def test_run_types(attributes: dict[str, Any], run_type: str) -> None:
    assert parse_run(attributes).run_type == run_type


@pytest.mark.parametrize(
    ("attributes", "parameters"),
    [
        (
            {"gen_ai.tool.name": "get", "tool_arguments": '{"a": 1}', "tools": '[{"name": "get"}]'},
            {"tool_name": "get", "tool_arguments": {"a": 1}, "tools": [{"name": "get"}]},
        ),
        (
            {"llm.request.functions": '[{"name": "f"}]', "llm.presence_penalty": 0.5, "llm.frequency_penalty": 1},
            {"functions": [{"name": "f"}], "presence_penalty": 0.5, "frequency_penalty": 1},
        ),
        (
            {"llm.request.functions.0.name": "f", "llm.chat.stop_sequences": ["."]},
            {"functions": [{"name": "f"}], "stop": ["."]},
        ),
        ({"llm.tools.0.tool.json_schema": '{"name": "f"}'}, {"tools": [{"name": "f"}]}),
        (
            {"ai.prompt.tools": ['{"name": "f"}'], "ai.settings.maxRetries": 2},
            {"tools": [{"name": "f"}], "maxRetries": 2},
        ),
        (
            {"gen_ai.tool.definitions": '[{"name": "f"}]', "gen_ai.request.encoding_formats": ["base64"]},
            {"tools": [{"name": "f"}], "encoding_formats": ["base64"]},
        ),
    ],
)
def test_parameters_of_the_call(attributes: dict[str, Any], parameters: dict[str, Any]) -> None:
    assert parse_extra(attributes)["invocation_params"] == parameters


@pytest.mark.parametrize(
    ("attributes", "metadata"),
    [
        ({"session.id": "s1", "user.id": "u1"}, {"session_id": "s1", "user_id": "u1"}),
        ({"user.id": "of the span", "langsmith.metadata.user_id": "of the run"}, {"user_id": "of the run"}),
        ({"gen_ai.conversation.id": "c1"}, {"conversation_id": "c1"}),
        ({"session.id": "s1", "langsmith.metadata.thread_id": "t1"}, {"session.id": "s1", "thread_id": "t1"}),
        (
            {"ai.operationId": "ai.generateText.doGenerate", "gen_ai.system": "openai.chat", "ai.model.id": "m"},
            {"ls_provider": "openai", "ls_model_name": "m", "ai.operationId": "ai.generateText.doGenerate"},
        ),
        (
            {"ai.telemetry.metadata.tenant": "t", "traceloop.association.properties.a": 1, "langsmith.metadata.b": 2},
            {"tenant": "t", "a": 1, "b": 2},
        ),
        # Of several values the one that was meant for runs counts.
        (
            {
                "ai.telemetry.metadata.tenant": "of the SDK",
                "langsmith.metadata.tenant": "of the run",
                "traceloop.association.properties.tenant": "of the association",
            },
            {"tenant": "of the run"},
        ),
        (
            {"langsmith.span.id": "no id", "langsmith.attachments": "no list"},
            {"langsmith.span.id": "no id", "langsmith.attachments": "no list"},
        ),
    ],
)
def test_metadata(attributes: dict[str, Any], metadata: dict[str, Any]) -> None:
    assert parse_extra(attributes)["metadata"] == metadata


def test_tokens_of_a_lifetime_are_a_part_of_those_that_were_written() -> None:
    """The count of the input leaves the cache out here: it is raised by what was written once."""
    written = {
        "gen_ai.usage.input_tokens": 50,
        "gen_ai.usage.cache_creation.input_tokens": 100,
        "gen_ai.usage.cache_creation.ephemeral_1h_input_tokens": 100,
    }
    usage, _ = read_usage(written)
    details = {"cache_creation": 100, "ephemeral_1h_input_tokens": 100}
    assert usage == {"input_tokens": 150, "total_tokens": 150, "input_token_details": details}


def test_the_first_exception_is_the_error_whatever_the_status_says() -> None:
    events = [("exception", {"exception.message": text, "exception.stacktrace": "line 1"}) for text in ("one", "two")]
    assert parse_run({}, events).error == "one\n\nline 1"
    assert parse_run({}, [("log", {"exception.message": "one"})]).error is None


def test_a_span_without_times_has_none() -> None:
    span = {"traceId": "0190a0c0000070008000000000000001", "spanId": "00000000000000aa", "name": "span"}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [{**span, "startTimeUnixNano": "0"}]}]}]}
    (run,) = parse_otlp(json.dumps(body).encode(), JSON, None).runs
    assert (run.start_time, run.end_time) == (None, None)


def test_attributes_of_the_process_become_metadata() -> None:
    resource = {"service.name": "svc", "telemetry.sdk.name": "opentelemetry", "username": "ada", "long": "x" * 2000}
    (run,) = parse({"username": "of the span"}, **resource).runs
    assert json.loads(run.extra or "")["metadata"] == {"service.name": "svc", "username": "of the span"}


def test_attributes_that_many_spans_would_repeat_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small request could become gigabytes otherwise."""
    monkeypatch.setattr(otlp_wire, "_MAX_REPEATED_CHARS", 20)
    span = {"traceId": "0190a0c0000070008000000000000001", "name": "span"}
    spans = [{**span, "spanId": f"{number:016x}"} for number in (1, 2)]
    resource = {"attributes": pairs({"first": "12345", "second": "12345"})}
    scopes = [{"spans": spans[:1]}, {"spans": spans[1:]}]
    body = {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}

    runs = parse_otlp(json.dumps(body).encode(), JSON, None).runs
    assert [json.loads(run.extra or "")["metadata"] for run in runs] == [{"first": "12345"}] * 2


def test_names_and_tags() -> None:
    assert parse_run({"traceloop.entity.name": "entity"}).name == "entity"
    assert parse_run({"traceloop.entity.name": "entity", "langsmith.trace.name": "named"}).name == "named"
    assert parse_run({"langsmith.span.tags": "a, b", "tag.tags": ["c"]}).tags == '["a","b","c"]'


def test_attachments_are_decoded() -> None:
    files = [{"name": "pic", "content": "aGk=", "mime_type": "text/plain; x"}, {"content": ""}]
    batch = parse({"langsmith.attachments": json.dumps(files)})
    assert [(file.name, file.content_type, file.data) for file in batch.attachments] == [
        ("pic", "text/plain", b"hi"),
        ("file", "application/octet-stream", b""),
    ]

    assert batch.attachments[0].run_id == batch.runs[0].id

    for wrong in ([{"name": "x", "content": "???"}], [{"name": "x"}], ["x"], [{"content": ""}] * 101):
        batch = parse({"langsmith.attachments": json.dumps(wrong)})
        assert (batch.runs, batch.attachments) == ([], [])
        assert "langsmith.attachments" in batch.refused[0].problems[0].loc


def test_names_with_dots_are_objects_and_lists() -> None:
    assert nest({"a.1.b": 2, "a.0.b": 1, "c": 3}) == {"a": [{"b": 1}, {"b": 2}], "c": 3}
    assert nest({"a": 1, "a.b": 2}) == {"a": {"value": 1, "b": 2}}
    assert nest({"a.b": 2, "a": 1}) == {"a": {"b": 2, "value": 1}}
    assert nest({"a.0": 1, "a.x": 2}) == {"a": {"0": 1, "x": 2}}

    deep = nest({".".join("a" * 500): 1})
    for _ in range(31):
        (deep,) = deep.values()

    assert deep == 1
