"""The A2A protocol with the stock client in both versions, and what version 1.0 and JSON-RPC require beyond it.

A question of a graph is answered once, however many clients answer.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from a2a.client.client import Client, ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError

from tests.api.agents import Remote, agent_id, message
from tests.api.streaming import new_id
from tests.servers import ServerProcess, agent_server

WORKING = {pb.TASK_STATE_SUBMITTED, pb.TASK_STATE_WORKING}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="a2a") as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
        yield client


@asynccontextmanager
async def connect(server: ServerProcess, graph_id: str, **options: Any) -> AsyncIterator[Client]:
    """The stock client of an agent, by the card that it finds; 0.3 is what it speaks to a card without interfaces."""
    version = options.pop("version", "1.0")
    async with httpx.AsyncClient(timeout=300) as http:
        factory = ClientFactory(ClientConfig(httpx_client=http, **options))
        url = f"{server.url}/a2a/{agent_id(graph_id)}"
        if version == "1.0":
            yield await factory.create_from_url(url)
            return

        card = pb.AgentCard(name=graph_id, capabilities=pb.AgentCapabilities(streaming=True))
        card.supported_interfaces.append(
            pb.AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
        )

        http.headers["A2A-Version"] = version
        yield factory.create(card)


def build_message(*texts: str, **fields: Any) -> pb.SendMessageRequest:
    parts = [pb.Part(text=text) for text in texts]
    said = pb.Message(role=pb.ROLE_USER, message_id=new_id(), parts=parts, **fields)
    return pb.SendMessageRequest(message=said)


async def send_message(client: Client, request: pb.SendMessageRequest) -> list[pb.StreamResponse]:
    return [event async for event in client.send_message(request)]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_stock_client_streams_and_sends(server: ServerProcess, version: str):
    async with connect(server, "talk", version=version) as client:
        events = await send_message(client, build_message("hi"))
        task = events[0].task
        assert task.status.state == pb.TASK_STATE_SUBMITTED
        assert [part.text for part in events[-2].artifact_update.artifact.parts] == ["one two three"]
        assert events[-1].status_update.status.state == pb.TASK_STATE_COMPLETED
        got = await client.get_task(pb.GetTaskRequest(id=task.id))
        assert [each.parts[0].text for each in got.history] == ["hi", "one two three"]
        assert [each.role for each in got.history] == [pb.ROLE_USER, pb.ROLE_AGENT]

        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(pb.CancelTaskRequest(id=task.id))

        with pytest.raises(TaskNotFoundError):
            await client.get_task(pb.GetTaskRequest(id=new_id()))

        with pytest.raises(UnsupportedOperationError):
            await send_message(client, build_message("more", task_id=task.id, context_id=task.context_id))

    async with connect(server, "talk", version=version, streaming=False) as client:
        (sent,) = await send_message(client, build_message("hi"))
        assert sent.task.status.state == pb.TASK_STATE_COMPLETED


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_stock_client_answers_an_interrupt(server: ServerProcess, version: str):
    async with connect(server, "ask", version=version) as client:
        events = await send_message(client, build_message("go"))
        task = events[0].task
        last = events[-1].status_update.status
        assert last.state == pb.TASK_STATE_INPUT_REQUIRED
        assert last.message.parts[0].text == "May I continue?"
        events = await send_message(client, build_message("yes", task_id=task.id, context_id=task.context_id))
        assert events[-2].artifact_update.artifact.parts[0].text == "heard yes"

        assert events[-1].status_update.status.state == pb.TASK_STATE_COMPLETED


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_stock_client_resubscribes_and_cancels(server: ServerProcess, version: str, tmp_path: Path):
    async with connect(server, "gate", version=version) as client:
        events = client.send_message(build_message(str(tmp_path / "file")))
        task_id = (await anext(events)).task.id
        await events.aclose()
        events = client.subscribe(pb.SubscribeToTaskRequest(id=task_id))
        assert (await anext(events)).task.id == task_id
        (tmp_path / "file").touch()

        followed = [event async for event in events]
        assert followed[-2].artifact_update.artifact.parts[0].text == "through"
        assert followed[-1].status_update.status.state == pb.TASK_STATE_COMPLETED

    async with connect(server, "gate", version=version, streaming=False, polling=True) as client:
        (sent,) = await send_message(client, build_message(str(tmp_path / "never")))
        assert sent.task.status.state in WORKING
        cancelled = await client.cancel_task(pb.CancelTaskRequest(id=sent.task.id))
        assert cancelled.status.state == pb.TASK_STATE_CANCELED


async def test_tasks_are_listed_in_pages_latest_first(server: ServerProcess):
    context_id = new_id()
    async with connect(server, "echo", streaming=False) as client:
        sent = [
            (await send_message(client, build_message(text, context_id=context_id)))[0].task.id
            for text in ("a", "b", "c")
        ]
        found: list[str] = []
        token = ""
        while token or not found:
            page = await client.list_tasks(pb.ListTasksRequest(context_id=context_id, page_size=2, page_token=token))
            assert page.total_size == 3
            assert not any(task.artifacts or task.history for task in page.tasks)
            found += [task.id for task in page.tasks]
            token = page.next_page_token

        assert found == sent[::-1]
        whole = await client.list_tasks(
            pb.ListTasksRequest(context_id=context_id, page_size=1, include_artifacts=True, history_length=1)
        )
        assert [part.text for part in whole.tasks[0].artifacts[0].parts] == ["echo: c"]
        assert [each.parts[0].text for each in whole.tasks[0].history] == ["echo: c"]
        failed = await client.list_tasks(pb.ListTasksRequest(context_id=context_id, status=pb.TASK_STATE_FAILED))
        assert (list(failed.tasks), failed.total_size) == ([], 0)

        assert context_id not in str(await client.list_tasks(pb.ListTasksRequest(context_id=new_id())))


async def test_version_1_writes_its_own_form(http):
    remote = Remote(http, "echo", **{"A2A-Version": "1.0"})
    said = {"role": "ROLE_USER", "parts": [{"text": "hi"}, {"raw": "aGk=", "mediaType": "image/png"}], "messageId": "m"}
    task = (await remote.ask("SendMessage", message=said))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["status"]["timestamp"].endswith("Z")
    assert "kind" not in json.dumps(task)
    assert task["history"][0]["parts"] == said["parts"]

    assert [each["role"] for each in task["history"]] == ["ROLE_USER", "ROLE_AGENT"]
    events = await remote.stream("SendStreamingMessage", message={**said, "messageId": "n"})
    assert [list(event) for event in events[:1] + events[-2:]] == [["task"], ["artifactUpdate"], ["statusUpdate"]]
    assert "final" not in events[-1]["statusUpdate"]
    reply = await remote.call("GetTask", {"id": new_id()})
    assert reply["error"]["code"] == -32001
    assert reply["error"]["data"][0]["reason"] == "TASK_NOT_FOUND"


HOSTILE = [
    (b"{", -32700),
    (b"", -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": ' + b"[" * 100_000, -32602),
    ([], -32600),
    ([{"jsonrpc": "2.0", "id": 1, "method": "tasks/get"}], -32600),
    ("7", -32600),
    ({"id": 1, "method": "tasks/get"}, -32600),
    ({"jsonrpc": "1.0", "id": 1, "method": "tasks/get"}, -32600),
    ({"jsonrpc": "2.0", "method": "tasks/get", "params": {"id": "x"}}, -32600),
    ({"jsonrpc": "2.0", "method": "tasks/get", "params": {}}, -32602),
    ({"jsonrpc": "2.0", "method": "nonsense", "params": {}}, -32601),
    ({"jsonrpc": "2.0", "id": None, "method": "tasks/get"}, -32600),
    ({"jsonrpc": "2.0", "id": {"a": 1}, "method": "tasks/get"}, -32600),
    ({"jsonrpc": "2.0", "id": True, "method": "tasks/get"}, -32600),
    ({"jsonrpc": "2.0", "id": 1}, -32600),
    ({"jsonrpc": "2.0", "id": 1, "method": 7}, -32600),
    ({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": []}, -32602),
    ({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "a\u0000b"}}, -32602),
    ({"jsonrpc": "2.0", "id": 1, "method": "nonsense"}, -32601),
    ({"jsonrpc": "2.0", "id": 1, "method": "__class__"}, -32601),
]


@pytest.mark.parametrize(("body", "code"), HOSTILE)
async def test_malformed_call_is_refused_with_its_code(http, body: Any, code: int):
    reply = await Remote(http, "echo").raw(body)
    assert (reply["jsonrpc"], reply["error"]["code"]) == ("2.0", code)


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml; charset=utf-8", "multipart/form-data"])
async def test_call_that_says_it_is_no_json_is_refused(http, content_type: str):
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message("hi")}}
    for sent in (body, str(body)):
        reply = await Remote(http, "echo").raw(sent, **{"content-type": content_type})
        assert (reply["error"]["code"], "application/json" in reply["error"]["message"]) == (-32005, True)


PART = {"kind": "text", "text": "hi"}
WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({}, -32602, "message"),
    ({"message": "hi"}, -32602, "params.message"),
    ({"message": {"role": "user", "parts": [PART]}}, -32602, "messageId"),
    ({"message": {"parts": [PART], "messageId": "m"}}, -32602, "role"),
    ({"message": {"role": "boss", "parts": [PART], "messageId": "m"}}, -32602, "role"),
    ({"message": {"role": "user", "messageId": "m"}}, -32602, "parts"),
    ({"message": {"role": "user", "parts": "hi", "messageId": "m"}}, -32602, "parts"),
    ({"message": message()}, -32602, "parts"),
    ({"message": message(messageId="")}, -32602, "messageId"),
    ({"message": message({"kind": "text"})}, -32602, "parts.0"),
    ({"message": message("hi", {"kind": "song", "text": "la"})}, -32602, "parts.1"),
    ({"message": message({"kind": "data", "text": "hi"})}, -32602, "parts.0"),
    ({"message": message({"text": "hi", "data": {"a": 1}})}, -32602, "parts.0"),
    ({"message": message({"kind": "file", "file": {"mimeType": "image/png"}})}, -32602, "parts.0"),
    ({"message": message({"raw": "no base64!", "mediaType": "image/png"})}, -32602, "base64"),
    ({"message": message({"url": "file:///etc/passwd", "mediaType": "text/plain"})}, -32602, "URI"),
    ({"message": message({"raw": "aGk=", "mediaType": "application/x-rootkit"})}, -32005, "application/x-rootkit"),
    ({"message": message("hi", taskId="nonsense")}, -32001, "Task not found"),
    ({"message": message("hi", taskId=f"{new_id()}:{new_id()}")}, -32001, "Task not found"),
    ({"message": message("hi", taskId=f"{new_id()}:{new_id()}", contextId=new_id())}, -32602, "contextId"),
    ({"message": message("hi"), "configuration": {"historyLength": -1}}, -32602, "historyLength"),
    ({"message": message("hi"), "configuration": {"acceptedOutputModes": ["image/png"]}}, -32005, "text/plain"),
    ({"message": message("hi"), "configuration": {"pushNotificationConfig": {"url": "http://x"}}}, -32003, "Push"),
    ({"message": message("hi"), "configuration": {"taskPushNotificationConfig": {"url": "http://x"}}}, -32003, "Push"),
    ({"message": message("hi"), "configuration": {"blocking": "no"}}, -32602, "blocking"),
    ({"message": message("hi"), "historyScope": "world"}, -32602, "historyScope"),
    ({"message": message("hi"), "command": {"goto": [1]}}, -32602, "goto"),
    ({"message": message("hi"), "context": [1]}, -32602, "context"),
    ({"message": message("hi"), "tenant": "acme"}, -32602, "tenant"),
]


@pytest.mark.parametrize(("params", "code", "named"), WRONG)
async def test_invalid_message_is_refused_naming_the_field(http, params, code: int, named: str):
    remote = Remote(http, "echo")
    reported = await remote.fails("message/send", **params)
    assert (reported[0], named in reported[1]) == (code, True), reported
    (event,) = await remote.stream("message/stream", **params)
    assert event["code"] == code

    # Version 1.0 reports what fails before the stream begins without a stream.
    assert (await remote.fails("SendStreamingMessage", **params))[0] == code


async def test_invalid_task_params_are_refused(http):
    echo = Remote(http, "echo")
    for method in ("tasks/get", "tasks/cancel", "GetTask", "CancelTask"):
        assert (await echo.fails(method))[0] == -32602
        assert (await echo.fails(method, id=7))[0] == -32602
        assert (await echo.fails(method, id=f"{new_id()}:{new_id()}"))[0] == -32001

    for method in ("tasks/pushNotificationConfig/set", "CreateTaskPushNotificationConfig"):
        assert (await echo.fails(method, taskId="t"))[0] == -32003

    for wrong in ({"pageSize": 101}, {"pageToken": "x"}, {"status": "TASK_STATE_BORED"}):
        assert (await echo.fails("ListTasks", **wrong))[0] == -32602, wrong

    (event,) = await echo.stream("tasks/resubscribe", id=f"{new_id()}:{new_id()}")
    assert event["code"] == -32001


async def test_invalid_headers_are_refused(http):
    path = Remote(http, "echo").path
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "x"}}
    refused = await http.post(path, json=body, headers={"accept": "text/html"})
    assert (refused.status_code, refused.json()["error"]) == (400, "Accept header must include application/json")
    refused = await http.post(path, json={**body, "method": "message/stream"}, headers={"accept": "application/json"})
    assert (refused.status_code, refused.json()["error"]) == (400, "Accept header must include text/event-stream")

    for version, code in (("0.3", -32001), ("1.0", -32001), ("1.0.1", -32001), ("99.0", -32009), ("x", -32009)):
        assert (await Remote(http, "echo").raw(body, **{"A2A-Version": version}))["error"]["code"] == code

    nobody = await http.post(f"/a2a/{new_id()}", json=body)
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (200, -32602)


async def test_failed_call_creates_nothing(http):
    context_id = new_id()
    ask = Remote(http, "form")
    assert (await ask.fails("message/send", message=message("soup", contextId=context_id)))[0] == -32602
    assert (await http.get(f"/threads/{context_id}")).status_code == 404


async def test_concurrent_answers_resume_once(http):
    ask = Remote(http, "ask")
    task = await ask.send("go")
    replies = await asyncio.gather(
        *(ask.call("message/send", {"message": message(f"{number}", taskId=task["id"])}) for number in range(4))
    )
    assert len([reply for reply in replies if "result" in reply]) == 1
    assert {reply["error"]["code"] for reply in replies if "error" in reply} == {-32004}

    assert (await ask.ask("tasks/get", id=task["id"]))["status"]["state"] == "completed"
