"""The A2A protocol field by field, in version 0.3."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.api.agents import Remote, agent_id, data, message, said
from tests.api.streaming import new_id, open_stream
from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("agent")
    with agent_server(module_database, folder, project="a2a", A2A_ALLOWED_TOOL_CALL_RESULTS="look_up") as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
        yield client


async def in_state(remote: Remote, task_id: str, state: str) -> bool:
    return (await remote.ask("tasks/get", id=task_id))["status"]["state"] == state


async def test_card_is_served_at_all_its_paths(server: ServerProcess, http):
    echo = agent_id("echo")
    paths = [
        f"/a2a/{echo}",
        f"/a2a/{echo}/.well-known/agent-card.json",
        f"/.well-known/agent-card.json?assistant_id={echo}",
    ]

    cards = [(await http.get(path)).json() for path in paths]
    assert cards[0] == cards[1] == cards[2]
    card = cards[0]
    assert (card["name"], card["description"], card["version"]) == ("echo", "Says what it is told", "1")
    assert card["url"] == f"{server.url}/a2a/{echo}"
    assert card["capabilities"]["streaming"] is True
    assert card["capabilities"]["pushNotifications"] is False

    skill = card["skills"][0]
    assert (skill["id"], skill["name"]) == (f"{echo}-main", "echo Capabilities")
    assert skill["metadata"]["inputSchema"] == {
        "required": ["messages", "topic"],
        "properties": ["messages", "topic"],
        "supportsA2A": True,
    }

    form = (await http.get(f"/a2a/{agent_id('form')}")).json()["skills"][0]["metadata"]["inputSchema"]
    assert form["supportsA2A"] is False
    unsaid = await http.get("/.well-known/agent-card.json")
    assert (unsaid.status_code, unsaid.json()["error"]["code"]) == (400, -32602)
    assert unsaid.json()["error"]["message"] == "Missing required query parameter: assistant_id"
    assert "A2A_DEFAULT_ASSISTANT" in unsaid.json()["detail"]
    assert (await http.get(f"/a2a/{new_id()}")).status_code == 404


@pytest.mark.parametrize(
    ("headers", "origin"),
    [
        ({"host": "agents.example"}, "http://agents.example"),
        (
            {"host": "in.example:8080", "x-forwarded-proto": "https", "x-forwarded-host": "out.example"},
            "https://out.example",
        ),
        ({"host": "in.example", "x-forwarded-proto": "javascript"}, "http://in.example"),
        ({"host": "in.example", "x-forwarded-host": 'evil.example/"><script>'}, "http://127.0.0.1"),
    ],
)
async def test_card_names_the_address_its_client_called(http, headers: dict[str, str], origin: str):
    response = await http.get(f"/a2a/{agent_id('echo')}", headers=headers)
    assert response.json()["url"].startswith(origin)
    assert response.headers["cache-control"] == "private, max-age=0, must-revalidate"


async def test_send_returns_task_with_history_and_answer(http):
    echo = Remote(http, "echo")
    task = await echo.send("hello", messageId="my message", metadata={"trace": 1})
    context_id, run_id = task["id"].split(":")
    assert (task["kind"], task["contextId"], task["status"]["state"]) == ("task", context_id, "completed")
    asked, answered = task["history"]
    names = {"kind": "message", "taskId": task["id"], "contextId": context_id}

    assert asked == {
        **names,
        "role": "user",
        "messageId": "my message",
        "parts": [{"kind": "text", "text": "hello"}],
        "metadata": {"trace": 1},
    }

    assert (answered["role"], answered["parts"]) == ("agent", [{"kind": "text", "text": "echo: hello"}])
    (artifact,) = task["artifacts"]
    assert (artifact["name"], artifact["parts"]) == ("Assistant Response", answered["parts"])
    got = await echo.ask("tasks/get", id=task["id"])
    assert got["status"]["message"]["parts"][0]["text"] == "Task completed successfully"
    assert {**got, "status": None} == {**task, "status": None}
    run = (await http.get(f"/threads/{context_id}/runs/{run_id}")).json()
    assert run["metadata"]["a2a.task_start_id"] == run_id

    state = (await http.get(f"/threads/{context_id}/state")).json()
    assert state["values"]["messages"][0]["id"] == "my message"
    assert state["values"]["messages"][0]["additional_kwargs"]["a2a.task_start_id"] == run_id


@pytest.mark.parametrize("context_id", ["my conversation", "../etc", "ü" * 1000])
async def test_a_client_names_its_contexts_as_it_likes(http, context_id: str):
    echo = Remote(http, "echo")
    first = await echo.send("one", contextId=context_id)
    second = await echo.send("two", contextId=context_id)
    assert (first["contextId"], second["contextId"]) == (context_id, context_id)
    assert {each["contextId"] for each in second["history"]} == {context_id}
    assert said(second["history"])[0] == ("user", "one")
    assert first["id"].split(":")[0] == second["id"].split(":")[0]

    assert (await echo.ask("tasks/get", id=second["id"]))["contextId"] == context_id
    page = await echo.ask("ListTasks", contextId=context_id)
    assert [each["contextId"] for each in page["tasks"]] == [context_id] * 2
    events = await echo.stream("message/stream", message=message("three", contextId=context_id))
    assert {each["contextId"] for each in events} == {context_id}


async def test_context_continues_and_history_length_limits(http):
    echo = Remote(http, "echo")
    context_id = new_id()
    first = await echo.send("one", contextId=context_id)
    second = await echo.send("two", contextId=context_id)
    assert first["id"] != second["id"]
    everything = [("user", "one"), ("agent", "echo: one"), ("user", "two"), ("agent", "echo: two")]
    assert said(second["history"]) == everything

    assert [each["taskId"] for each in second["history"]] == [first["id"]] * 2 + [second["id"]] * 2
    sent = {"message": message("three", contextId=context_id), "configuration": {"historyLength": 1}}
    assert said((await echo.ask("message/send", **sent))["history"]) == [("agent", "echo: three")]
    assert "history" not in await echo.ask("tasks/get", id=first["id"], historyLength=0)
    assert said((await echo.ask("tasks/get", id=first["id"], historyScope="task"))["history"]) == everything[:2]
    scoped = Remote(http, "echo", **{"LangGraph-A2A-History-Scope": "task"})
    again = await scoped.ask("tasks/get", id=second["id"])
    assert said(again["history"]) == everything[2:]

    assert again["artifacts"][0]["parts"][0]["text"] == "echo: two"


async def test_files_and_data_reach_the_graph(http):
    echo = Remote(http, "echo")
    picture = {"kind": "file", "file": {"bytes": "aGk=", "mimeType": "image/png", "name": "a.png"}}
    paper = {"kind": "file", "file": {"uri": "https://files.example/a.pdf"}}
    task = await echo.send("look", picture, paper)
    assert said(task["history"])[1] == ("agent", "echo: text, image, file")
    file = {"uri": "https://files.example/a.pdf", "mimeType": "application/pdf"}
    assert task["history"][0]["parts"] == [{"kind": "text", "text": "look"}, picture, {"kind": "file", "file": file}]

    assert said((await echo.send("hi", data({"topic": "fish"})))["history"])[1] == ("agent", "echo: hi about fish")
    assert said((await echo.send(data({"price": 7})))["history"])[1] == ("agent", 'echo: {"price":7}')


async def test_send_passes_run_context(http):
    task = await Remote(http, "echo").ask("message/send", message=message("hi"), context={"greeting": "moin"})
    assert said(task["history"])[1] == ("agent", "moin: hi")


async def test_interrupt_is_input_required_and_answer_continues_task(http):
    ask = Remote(http, "ask")
    task = await ask.send("go")
    assert task["status"]["state"] == "input-required"
    (artifact,) = task["artifacts"]
    assert (artifact["name"], artifact["description"]) == ("Interrupt", "Agent requires input to continue")
    assert artifact["parts"][0]["data"]["value"] == "May I continue?"
    assert task["status"]["message"]["parts"] == [{"kind": "text", "text": "May I continue?"}]

    done = await ask.send("yes", taskId=task["id"])
    assert (done["id"], done["contextId"], done["status"]["state"]) == (task["id"], task["contextId"], "completed")
    assert done["artifacts"][0]["parts"] == [{"kind": "text", "text": "heard yes"}]

    assert await ask.fails("message/send", message=message("more", taskId=task["id"])) == (
        -32004,
        "A terminal task cannot accept another message",
    )


async def test_command_resumes_and_text_wins_over_it(http):
    ask = Remote(http, "ask")
    for params in (
        {"message": message(), "command": {"resume": "sure"}},
        {"message": message(data({"command": {"resume": "sure"}}))},
        {"message": message("sure"), "command": {"resume": "never"}},
    ):
        task = await ask.send("go")
        params["message"]["taskId"] = task["id"]
        done = await ask.ask("message/send", **params)
        assert done["artifacts"][0]["parts"][0]["text"] == "heard sure"

    task = await ask.send("go")
    in_context = message(contextId=task["contextId"])
    done = await ask.ask("message/send", message=in_context, command={"resume": "by context"})
    assert (done["id"], done["artifacts"][0]["parts"][0]["text"]) == (task["id"], "heard by context")


async def test_several_interrupts_are_answered_by_id(http):
    both = Remote(http, "both")
    task = await both.send("go")
    ids = {part["data"]["value"]["name"]: part["data"]["id"] for part in task["artifacts"][0]["parts"]}
    assert set(ids) == {"left", "right"}
    code, why = await both.fails("message/send", message=message("yes", taskId=task["id"]))
    assert (code, all(each in why for each in ids.values())) == (-32602, True)
    half = await both.send(data({ids["left"]: "L"}), taskId=task["id"])
    assert half["status"]["state"] == "input-required"

    done = await both.send(data("R"), taskId=task["id"])
    assert done["status"]["state"] == "completed"
    assert {text for role, text in said(done["history"]) if role == "agent"} == {"left is L", "right is R"}


async def test_new_message_supersedes_open_interrupt(http):
    ask = Remote(http, "ask")
    old = await ask.send("go")
    new = await ask.send("something else", contextId=old["contextId"])
    assert (new["id"] != old["id"], new["status"]["state"]) == (True, "input-required")
    assert await in_state(ask, old["id"], "canceled")
    assert (await ask.fails("message/send", message=message("yes", taskId=old["id"])))[0] == -32004


async def test_graph_without_messages_reads_and_returns_data(http):
    form = Remote(http, "form")
    done = await form.send(data({"dish": "soup"}))
    assert done["artifacts"][0]["parts"] == [data({"dish": "soup", "approved": "at once", "receipt": "one soup"})]
    assert done["history"][0]["parts"] == [data({"dish": "soup"})]
    asked = await form.send(data({"dish": "lobster"}), contextId=done["contextId"])
    assert asked["artifacts"][0]["parts"][0]["data"]["value"] == {"approve": "lobster"}
    paid = await form.send("yes", taskId=asked["id"])
    assert paid["artifacts"][0]["parts"][0]["data"]["receipt"] == "one lobster"

    assert [each["parts"] for each in paid["history"]] == [
        [data({"dish": "lobster"})],
        [{"kind": "text", "text": "yes"}],
    ]

    earlier = await form.ask("tasks/get", id=done["id"])
    assert earlier["artifacts"][0]["parts"][0]["data"]["receipt"] == "one soup"
    code, why = await form.fails("message/send", message=message("soup"))
    assert (code, "parts.0" in why) == (-32602, True)


async def test_history_includes_allowed_tool_results(http):
    task = await Remote(http, "tools").send("weather?")
    _, results, reply = task["history"]
    assert results["role"] == "agent"
    tool_result = {"toolCallId": "call-1", "content": "rain in Bergen", "name": "look_up", "status": "success"}
    assert results["parts"] == [data({"tool_results": [tool_result]})]
    assert reply["parts"] == task["artifacts"][0]["parts"] == [{"kind": "text", "text": "take an umbrella"}]
    assert "secret" not in str(task)


async def test_graph_failure_is_a_failed_task(http):
    boom = Remote(http, "boom")
    task = await boom.send("go")
    assert (task["status"]["state"], task["status"]["message"]["parts"][0]["text"]) == ("failed", "kaboom")
    assert "artifacts" not in task
    *_, last = await boom.stream("message/stream", message=message("go"))
    assert (last["status"]["state"], last["final"]) == ("failed", True)
    assert last["status"]["message"]["parts"][0]["text"] == "kaboom"


async def test_non_blocking_send_and_cancel(http, tmp_path: Path):
    gate = Remote(http, "gate")
    file = str(tmp_path / "file")
    task = await gate.ask("message/send", message=message(file), configuration={"blocking": False})
    assert task["status"]["state"] in {"submitted", "working"}
    assert said(task["history"]) == [("user", file)]
    assert "artifacts" not in task
    assert (await gate.fails("message/send", message=message("now?", taskId=task["id"])))[0] == -32004

    cancelled = await gate.ask("tasks/cancel", id=task["id"])
    assert (cancelled["id"], cancelled["status"]["state"]) == (task["id"], "canceled")
    assert await gate.fails("tasks/cancel", id=task["id"]) == (
        -32002,
        "Task is not cancelable in its current state",
    )


async def test_interrupted_task_can_be_canceled(http):
    ask = Remote(http, "ask")
    task = await ask.send("go")
    assert (await ask.ask("tasks/cancel", id=task["id"]))["status"]["state"] == "canceled"
    assert await in_state(ask, task["id"], "canceled")
    assert (await ask.fails("message/send", message=message("yes", taskId=task["id"])))[0] == -32004
    assert (await ask.send("again", contextId=task["contextId"]))["status"]["state"] == "input-required"


async def test_stream_sends_task_messages_and_artifacts(http):
    events = await Remote(http, "talk").stream("message/stream", message=message("hi"))
    assert [event["kind"] for event in events[:1] + events[-2:]] == ["task", "artifact-update", "status-update"]
    assert (events[0]["status"]["state"], said(events[0]["history"])) == ("submitted", [("user", "hi")])
    spoken = [event["status"]["message"]["parts"][0]["text"] for event in events[1:-2]]
    assert spoken
    assert all("one two three".startswith(text) for text in spoken)
    assert spoken == sorted(spoken, key=len)

    assert spoken[-1] == "one two three"
    assert not any(event["final"] for event in events[1:-2])
    update, last = events[-2:]
    assert (update["append"], update["lastChunk"]) == (False, True)
    assert update["artifact"]["parts"] == [{"kind": "text", "text": "one two three"}]
    assert (last["status"]["state"], last["final"]) == ("completed", True)
    assert {(event.get("taskId") or event["id"], event["contextId"]) for event in events} == {
        (events[0]["id"], events[0]["contextId"])
    }


async def test_stream_ends_at_interrupt_and_next_stream_continues(http):
    ask = Remote(http, "ask")
    task, artifact, last = await ask.stream("message/stream", message=message("go"))
    assert artifact["artifact"]["name"] == "Interrupt"
    assert (last["status"]["state"], last["final"]) == ("input-required", True)
    events = await ask.stream("message/stream", message=message("yes", taskId=task["id"]))
    assert (events[0]["id"], events[-1]["status"]["state"]) == (task["id"], "completed")


async def test_subscription_of_version_1_ends_with_the_task(http):
    ask = Remote(http, "ask")

    def build_body(task: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 7, "method": "SubscribeToTask", "params": {"id": task["id"]}}

    for ending, state in (("yes", "TASK_STATE_COMPLETED"), ("tasks/cancel", "TASK_STATE_CANCELED")):
        task = await ask.send("go")
        async with open_stream(http, "POST", ask.path, json=build_body(task)) as follower:
            for _ in ("task", "artifactUpdate", "statusUpdate"):
                event = await follower.next()
                assert event is not None

            assert event.data["result"]["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"

            if ending == "tasks/cancel":
                await ask.ask(ending, id=task["id"])
            else:
                await ask.send(ending, taskId=task["id"])

            *_, last = await follower.all()
            assert last.data["result"]["statusUpdate"]["status"]["state"] == state

        refused = (await http.post(ask.path, json=build_body(task))).json()
        assert refused["error"]["code"] == -32004


async def test_resubscribe_follows_running_task(http, tmp_path: Path):
    gate = Remote(http, "gate")
    file = tmp_path / "file"

    body = {"jsonrpc": "2.0", "id": 7, "method": "message/stream", "params": {"message": message(str(file))}}
    async with open_stream(http, "POST", gate.path, json=body) as stream:
        event = await stream.next()
        assert event is not None
        task_id = event.data["result"]["id"]

    await eventually(lambda: in_state(gate, task_id, "working"))
    body = {"jsonrpc": "2.0", "id": 7, "method": "tasks/resubscribe", "params": {"id": task_id}}
    async with (
        open_stream(http, "POST", gate.path, json=body) as one,
        open_stream(http, "POST", gate.path, json=body) as two,
    ):
        for follower in (one, two):
            first = await follower.next()
            assert first is not None
            assert (first.data["result"]["kind"], first.data["result"]["id"]) == ("task", task_id)

        # Only now: a task that has ended cannot be followed any more.
        file.touch()

        for follower in (one, two):
            *_, artifact, last = [event.data["result"] for event in await follower.all()]
            assert artifact["artifact"]["parts"][0]["text"] == "through"
            assert (last["status"]["state"], last["final"]) == ("completed", True)

    (refused,) = await gate.stream("tasks/resubscribe", id=task_id)
    assert refused["code"] == -32004


async def test_tasks_are_visible_to_their_agent_only(http):
    task = await Remote(http, "echo").send("hello")
    other = Remote(http, "talk")
    assert await other.fails("tasks/get", id=task["id"]) == (-32001, "Task not found")
    assert (await other.fails("tasks/cancel", id=task["id"]))[0] == -32001
    assert (await other.fails("message/send", message=message("hi", taskId=task["id"])))[0] == -32001
    run = (await http.post(f"/threads/{task['contextId']}/runs", json={"assistant_id": "echo", "input": None})).json()
    assert (await Remote(http, "echo").fails("tasks/get", id=f"{task['contextId']}:{run['run_id']}"))[0] == -32001
