"""Access to tasks of other users through every method of the A2A protocol.

A task of another user does not exist for the caller, whatever the caller requests.
"""

from collections.abc import Iterator

import httpx2
import pytest

from tests.api.agents import Remote, agent_id, data, message
from tests.servers import ServerProcess, agent_server

WORDS = {"text": "mine"}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project="guarded") as running:
        yield running


def as_user(http: httpx2.AsyncClient, name: str, graph_id: str = "echo") -> Remote:
    return Remote(http, graph_id, authorization=f"Bearer {name}")


async def test_calls_without_token_get_401_and_card_names_scheme(server: ServerProcess):
    echo = agent_id("echo")
    paths = (
        f"/a2a/{echo}",
        f"/a2a/{echo}/.well-known/agent-card.json",
        f"/.well-known/agent-card.json?assistant_id={echo}",
    )

    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        for path in paths:
            assert (await http.get(path)).status_code == 401

        assert (await http.post(f"/a2a/{echo}", content=b"{")).status_code == 401
        card = (await http.get(paths[0], headers={"authorization": "Bearer alice"})).json()
        assert card["securitySchemes"]["token"].items() >= {"type": "http", "scheme": "bearer"}.items()
        assert card["security"] == [{"token": []}]


async def test_tasks_of_other_users_are_not_found(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        alice = as_user(http, "alice")
        bob = as_user(http, "bob")
        task = await alice.send(data(WORDS))
        assert task["artifacts"][0]["parts"][0]["data"]["reported"]["identity"] == "alice"

        for method in ("tasks/get", "tasks/cancel"):
            assert (await bob.fails(method, id=task["id"]))[0] == -32001

        assert (await bob.stream("tasks/resubscribe", id=task["id"]))[0]["code"] == -32001
        to_task = message(data(WORDS), taskId=task["id"])
        assert (await bob.fails("message/send", message=to_task))[0] == -32001
        in_context = message(data(WORDS), contextId=task["contextId"])
        code, why = await bob.fails("message/send", message=in_context)
        assert (code, why) == (-32602, "Failed to create run: Thread or assistant not found.")
        (event,) = await bob.stream("message/stream", message=in_context)
        assert event["code"] == -32602

        listed = [await each.ask("ListTasks", contextId=task["contextId"]) for each in (alice, bob)]
        assert [page["totalSize"] for page in listed] == [1, 0]
        assert (await alice.ask("tasks/get", id=task["id"]))["id"] == task["id"]


async def test_assistants_of_other_users_are_no_agents(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        alice, bob = (as_user(http, name) for name in ("alice", "bob"))
        made = await http.post("/assistants", json={"graph_id": "echo"}, headers=alice.headers)
        assistant_id = made.json()["assistant_id"]
        alice.path = bob.path = f"/a2a/{assistant_id}"

        cards = (f"{bob.path}/.well-known/agent-card.json", f"/.well-known/agent-card.json?assistant_id={assistant_id}")
        for card in cards:
            assert (await http.get(card, headers=alice.headers)).status_code == 200
            assert (await http.get(card, headers=bob.headers)).status_code == 404

        await alice.ask("agent/getAuthenticatedExtendedCard")
        for method, params in (
            ("agent/getAuthenticatedExtendedCard", {}),
            ("message/send", {"message": message(data(WORDS))}),
        ):
            code, why = await bob.fails(method, **params)
            assert "not found" in why, (method, code, why)


async def test_contexts_of_the_same_name_are_of_each_user(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        ann, ben = (as_user(http, name) for name in ("ann", "ben"))
        tasks = [await each.send(data(WORDS), contextId="my first context") for each in (ann, ben)]
        assert [task["artifacts"][0]["parts"][0]["data"]["reported"]["identity"] for task in tasks] == ["ann", "ben"]
        assert tasks[0]["contextId"] == tasks[1]["contextId"] == "my first context"


async def test_interrupts_of_other_users_are_hidden(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        alice = as_user(http, "alice", "asking")
        bob = as_user(http, "bob", "asking")
        task = await alice.send(data(WORDS))
        questions = [part["data"]["id"] for part in task["artifacts"][0]["parts"]]
        assert len(questions) == 2

        for part in (data(WORDS), data({"command": {"resume": "yes"}})):
            in_context = message(part, contextId=task["contextId"])
            refused = await bob.fails("message/send", message=in_context)
            assert refused == (-32602, "Failed to create run: Thread or assistant not found.")


async def test_cancel_needs_update_permission(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        reader = as_user(http, "reader", "patient")
        sent = {"message": message(data(WORDS)), "configuration": {"blocking": False}}
        task = await reader.ask("message/send", **sent)
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/cancel", "params": {"id": task["id"]}}
        refused = await http.post(reader.path, json=body, headers=reader.headers)
        assert (refused.status_code, refused.json()["detail"]) == (403, "Readers read.")
        assert (await reader.ask("tasks/get", id=task["id"]))["status"]["state"] in {"submitted", "working"}


async def test_handlers_are_asked_about_each_method(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        task = await as_user(http, "alice").send(data(WORDS))
        of_task = {"id": task["id"]}
        for action, method, params in (
            ("threads.read", "tasks/get", of_task),
            ("threads.read", "tasks/resubscribe", of_task),
            ("threads.update", "tasks/cancel", of_task),
            ("threads.search", "ListTasks", {}),
            ("threads.read", "message/send", {"message": message(data(WORDS), taskId=task["id"])}),
            ("threads.create_run", "message/send", {"message": message(data(WORDS))}),
            ("threads.create_run", "message/stream", {"message": message(data(WORDS))}),
        ):
            caller = as_user(http, f"without {action}")
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            refused = await http.post(caller.path, json=body, headers=caller.headers)
            assert (refused.status_code, refused.json()) == (403, {"detail": f"Without {action}."}), (action, method)


async def test_users_may_give_their_contexts_the_same_name(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        alice = as_user(http, "alice")
        bob = as_user(http, "bob")
        sent = [await each.send(data(WORDS), contextId="our project") for each in (alice, bob)]
        assert [task["contextId"] for task in sent] == ["our project"] * 2
        for each, task in zip((alice, bob), sent, strict=True):
            page = await each.ask("ListTasks", contextId="our project")
            assert [found["id"] for found in page["tasks"]] == [task["id"]]


async def test_agents_of_other_users_have_no_card(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        alice = as_user(http, "alice")
        bob = as_user(http, "bob")
        made = await http.post("/assistants", json={"graph_id": "echo"}, headers=alice.headers)
        path = f"/a2a/{made.json()['assistant_id']}"
        assert [(await http.get(path, headers=each.headers)).status_code for each in (alice, bob)] == [200, 404]

        alice.path = bob.path = path
        for method in ("agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard"):
            assert (await alice.ask(method))["name"] == "Untitled"
            assert (await bob.fails(method))[0] == -32602


async def test_metadata_of_a_message_changes_nothing_that_the_server_notes(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        alice = as_user(http, "alice", "asking")
        metadata = {"a2a.closed": True, "a2a.task_start_id": "x", "a2a.context_id": "x", "mine": 1}
        task = await alice.ask("message/send", message=message(data(WORDS)), metadata=metadata)
        assert task["status"]["state"] == "input-required"
        assert task["contextId"] in task["id"]
        [run] = (await http.get(f"/threads/{task['contextId']}/runs", headers=alice.headers)).json()
        assert run["metadata"].get("mine") == 1
        assert "a2a.closed" not in run["metadata"]
