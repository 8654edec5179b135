"""Custom authentication and authorization over HTTP.

No route of the agent server answers without authentication, and no route accepts the id of another user's object.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4, uuid5

import httpx2
import pytest
from langgraph_sdk import get_client
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from portside.agent.assistants.records import SYSTEM_NAMESPACE
from portside.agent.served_routes import ROUTES
from portside.kernel.http.routes import Route
from tests.conftest import eventually
from tests.javascript import start_guarded_server
from tests.servers import FORMS, ServerProcess, agent_server

RUN = {"assistant_id": "echo", "input": {"text": "hi"}}
EVERY_YEAR = {"assistant_id": "echo", "schedule": "@yearly", "input": {}}
# What has to be sent for a route to do something.
BODIES: dict[str, Any] = {
    "POST /threads/{thread_id}/state": {"values": {"text": "x"}, "as_node": "tell"},
    "POST /ui/{name}": {"name": "weather"},
    "PATCH /threads/{thread_id}/state": {"metadata": {"x": 1}},
    "POST /threads/{thread_id}/state/checkpoint": {"checkpoint": {}},
    "POST /threads/{thread_id}/runs": RUN,
    "POST /threads/{thread_id}/runs/wait": RUN,
    "POST /threads/{thread_id}/runs/stream": RUN,
    "POST /threads/{thread_id}/runs/crons": EVERY_YEAR,
    "POST /threads/{thread_id}/stream/events": {"channels": ["values"]},
    "PATCH /threads/{thread_id}": {"metadata": {"owner": "bob"}, "ttl": {"ttl": 1}},
    "PATCH /assistants/{assistant_id}": {"metadata": {"owner": "bob"}},
    "POST /assistants/{assistant_id}/latest": {"version": 1},
    "PATCH /runs/crons/{cron_id}": {"schedule": "@daily"},
}
COMMANDS = "POST /threads/{thread_id}/commands"
# Access to the routes of these protocols is tested in test_a2a_access.py and test_mcp_access.py.
PROTOCOLS = {"a2a", "mcp"}
RUN_OF_HERS = {**RUN, "assistant_id": "{assistant_id}"}
CANCELLING = "?cancel_on_disconnect=true"
# The requests that ask the handlers about each action (docs/guides/protect-an-agent.md). Many ask about several.
ACTIONS: dict[str, list[tuple[str, str, Any]]] = {
    "threads.create": [
        ("POST", "/threads", {}),
        ("POST", "/threads/{thread_id}/copy", None),
        ("POST", "/threads/{new_id}/runs", {**RUN, "if_not_exists": "create"}),
        ("POST", "/threads/{new_id}/runs/wait", {**RUN, "if_not_exists": "create"}),
        ("POST", "/threads/{new_id}/runs/stream", {**RUN, "if_not_exists": "create"}),
    ],
    "threads.search": [
        ("POST", "/threads/search", {}),
        ("POST", "/threads/count", {}),
        ("POST", "/runs/search", {}),
        ("GET", "/threads/{thread_id}/runs", None),
        ("POST", "/runs/crons/search", {}),
        ("POST", "/runs/crons/count", {}),
    ],
    "threads.read": [
        ("GET", "/threads/{thread_id}", None),
        ("GET", "/threads/{thread_id}/storage", None),
        ("POST", "/threads/{thread_id}/copy", None),
        ("GET", "/threads/{thread_id}/state", None),
        ("GET", "/threads/{thread_id}/state/{checkpoint_id}", None),
        ("POST", "/threads/{thread_id}/state/checkpoint", {"checkpoint": {}}),
        ("GET", "/threads/{thread_id}/history", None),
        ("POST", "/threads/{thread_id}/history", {}),
        ("GET", "/threads/{thread_id}/stream", None),
        ("POST", "/threads/{thread_id}/stream/events", {"channels": ["values"]}),
        ("GET", "/threads/{thread_id}/runs/{run_id}", None),
        ("GET", "/threads/{thread_id}/runs/{run_id}/join", None),
        ("GET", "/threads/{thread_id}/runs/{run_id}/stream", None),
        ("GET", "/threads/{thread_id}/runs/{run_id}/webhook", None),
        ("GET", "/runs/{run_id}/join", None),
        ("GET", "/runs/{run_id}/stream", None),
        ("GET", "/runs/crons/{cron_id}", None),
        ("PATCH", "/runs/crons/{cron_id}", {}),
        ("POST", "/runs/crons/{cron_id}/run", None),
        ("DELETE", "/runs/crons/{cron_id}", None),
    ],
    "threads.update": [
        ("PATCH", "/threads/{thread_id}", {}),
        ("POST", "/threads/{thread_id}/state", {"values": {"text": "x"}, "as_node": "tell"}),
        ("PATCH", "/threads/{thread_id}/state", {"metadata": {"x": 1}}),
        ("POST", "/threads/{thread_id}/runs/{run_id}/cancel", None),
        ("POST", "/runs/cancel", {"thread_id": "{thread_id}", "run_ids": ["{run_id}"]}),
        ("GET", "/threads/{thread_id}/runs/{run_id}/join" + CANCELLING, None),
        ("GET", "/threads/{thread_id}/runs/{run_id}/stream" + CANCELLING, None),
        ("GET", "/runs/{run_id}/join" + CANCELLING, None),
        ("GET", "/runs/{run_id}/stream" + CANCELLING, None),
    ],
    "threads.delete": [
        ("DELETE", "/threads/{thread_id}", None),
        ("POST", "/threads/prune", {"thread_ids": ["{thread_id}"]}),
        ("DELETE", "/threads/{thread_id}/runs/{run_id}", None),
        ("DELETE", "/assistants/{assistant_id}?delete_threads=true", None),
    ],
    "threads.create_run": [
        ("POST", "/threads/{thread_id}/runs", RUN),
        ("POST", "/threads/{thread_id}/runs/wait", RUN),
        ("POST", "/threads/{thread_id}/runs/stream", RUN),
        ("POST", "/runs", RUN),
        ("POST", "/runs/wait", RUN),
        ("POST", "/runs/stream", RUN),
        ("POST", "/runs/batch", [RUN]),
        ("POST", "/threads/{thread_id}/runs/crons", EVERY_YEAR),
    ],
    "assistants.create": [("POST", "/assistants", {"graph_id": "echo"})],
    "assistants.search": [("POST", "/assistants/search", {}), ("POST", "/assistants/count", {})],
    "assistants.read": [
        ("GET", "/assistants/{assistant_id}", None),
        ("POST", "/assistants/{assistant_id}/versions", {}),
        ("GET", "/assistants/{assistant_id}/graph", None),
        ("GET", "/assistants/{assistant_id}/schemas", None),
        ("GET", "/assistants/{assistant_id}/subgraphs", None),
        ("GET", "/assistants/{assistant_id}/subgraphs/{namespace}", None),
        ("POST", "/threads/{thread_id}/runs", RUN_OF_HERS),
        ("POST", "/runs", RUN_OF_HERS),
        ("POST", "/runs/crons", {**EVERY_YEAR, "assistant_id": "{assistant_id}"}),
        ("POST", "/threads/{thread_id}/runs/crons", {**EVERY_YEAR, "assistant_id": "{assistant_id}"}),
        ("PATCH", "/runs/crons/{cron_id}", {"assistant_id": "{assistant_id}"}),
    ],
    "assistants.update": [
        ("PATCH", "/assistants/{assistant_id}", {}),
        ("POST", "/assistants/{assistant_id}/latest", {"version": 1}),
    ],
    "assistants.delete": [("DELETE", "/assistants/{assistant_id}", None)],
    "crons.create": [("POST", "/runs/crons", EVERY_YEAR), ("POST", "/threads/{thread_id}/runs/crons", EVERY_YEAR)],
    "crons.search": [
        ("POST", "/runs/crons/search", {}),
        ("POST", "/runs/crons/count", {}),
        ("POST", "/runs/crons/preview", {"schedule": "@daily"}),
    ],
    "crons.read": [("GET", "/runs/crons/{cron_id}", None)],
    "crons.update": [("PATCH", "/runs/crons/{cron_id}", {}), ("POST", "/runs/crons/{cron_id}/run", None)],
    "crons.delete": [("DELETE", "/runs/crons/{cron_id}", None)],
    "store.put": [("PUT", "/store/items", {"namespace": ["n"], "key": "k", "value": {}})],
    "store.get": [("GET", "/store/items?namespace=n&key=k", None)],
    "store.delete": [("DELETE", "/store/items", {"namespace": ["n"], "key": "k"})],
    "store.search": [("POST", "/store/items/search", {"namespace_prefix": ["n"]})],
    "store.list_namespaces": [("POST", "/store/namespaces", {})],
}


@pytest.fixture(
    scope="module", params=[*FORMS, pytest.param(None, id="handlers in TypeScript", marks=pytest.mark.thorough)]
)
def server(
    request: pytest.FixtureRequest, module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("agent")
    # The routes of components exist only if there are some.
    shown = {"GRAPH_UI": '{"agent": "./ui.tsx"}'}
    with (
        start_guarded_server(module_database, folder, **shown)
        if request.param is None
        else agent_server(module_database, folder, project="guarded", **request.param, **shown)
    ) as running:
        yield running


@contextlib.contextmanager
def someone(server: ServerProcess, token: str | None) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx2.Client(base_url=server.url, timeout=300, headers=headers) as client:
        yield client


@pytest.fixture
def alice(server: ServerProcess) -> Iterator[httpx2.Client]:
    with someone(server, "alice") as client:
        yield client


@pytest.fixture
def bob(server: ServerProcess) -> Iterator[httpx2.Client]:
    with someone(server, "bob") as client:
        yield client


@pytest.fixture(scope="module")
def hers(server: ServerProcess) -> dict[str, str]:
    """One of everything of alice's, by the name of the parameter that names it."""
    with someone(server, "alice") as alice:
        thread_id = good(alice.post("/threads", json={}))["thread_id"]
        run = good(alice.post(f"/threads/{thread_id}/runs", json=RUN))
        good(alice.get(f"/threads/{thread_id}/runs/{run['run_id']}/join"))
        checkpoint = good(alice.get(f"/threads/{thread_id}/state"))["checkpoint"]
        cron = good(alice.post(f"/threads/{thread_id}/runs/crons", json=EVERY_YEAR))
        assistant = good(alice.post("/assistants", json={"graph_id": "echo", "name": "hers"}))

        return {
            "thread_id": thread_id,
            "run_id": run["run_id"],
            "checkpoint_id": checkpoint["checkpoint_id"],
            "cron_id": cron["cron_id"],
            "assistant_id": assistant["assistant_id"],
            "namespace": "x",
        }


def good(response: httpx2.Response) -> Any:
    assert response.status_code < 300, response.text
    return response.json() if response.content else None


def label(route: Route) -> str:
    return f"{route.method} {route.path}"


def address(route: Route, ids: dict[str, str]) -> str:
    return route.path.format(**{name: ids[name] if name in ids else str(uuid4()) for name in route.path_types})


def fill_in(given: Any, ids: dict[str, str]) -> Any:
    """Return a path or a body with the ids that it names."""
    if isinstance(given, str):
        return given.format(**ids)
    if isinstance(given, list):
        return [fill_in(part, ids) for part in given]

    return {name: fill_in(part, ids) for name, part in given.items()} if isinstance(given, dict) else given


def read_everything(client: httpx2.Client, ids: dict[str, str]) -> list[Any]:
    thread = f"/threads/{ids['thread_id']}"
    state = f"/threads/{ids['thread_id']}/state"
    places = [thread, state, f"{thread}/history", f"{thread}/runs", f"/runs/crons/{ids['cron_id']}"]
    found = [good(client.get(place)) for place in [*places, f"/assistants/{ids['assistant_id']}"]]
    return [*found, good(client.post("/runs/crons/count", json={}))]


# Who is let in


# Those for debugging are there only where an operator set a folder.
@pytest.mark.parametrize(
    "route", [route for route in ROUTES if not route.public and route.tag != "debugging"], ids=label
)
def test_every_route_requires_authentication(server: ServerProcess, route: Route) -> None:
    with someone(server, None) as nobody, nobody.stream(route.method, address(route, {})) as response:
        response.read()
        assert (response.status_code, response.json()) == (401, {"detail": "Who are you?"})
        assert response.headers["www-authenticate"] == "Bearer"


def test_websocket_is_refused_before_it_is_accepted(server: ServerProcess, hers: dict[str, str]) -> None:
    url = f"{server.url.replace('http', 'ws')}/threads/{hers['thread_id']}/stream/events"
    with pytest.raises(InvalidStatus) as refused:
        connect(url).close()

    assert refused.value.response.status_code == 401
    subscribing = json.dumps({"id": 1, "method": "subscription.subscribe", "params": {"channels": ["values"]}})
    for token, status in (("bob", 404), ("without threads.read", 403)):
        with pytest.raises(InvalidStatus) as refused:
            connect(url, additional_headers={"Authorization": f"Bearer {token}"}).close()
        assert refused.value.response.status_code == status

    with connect(url, additional_headers={"Authorization": "Bearer alice"}) as socket:
        socket.send(subscribing)
        assert json.loads(socket.recv(60))["type"] == "success"


@pytest.mark.parametrize(
    ("token", "status", "detail"),
    [
        ("unwanted", 401, "Unauthorized"),
        ("banned", 403, "Not you."),
        ("crash", 500, "Internal Server Error"),
        ("nobody", 500, "Internal Server Error"),
    ],
)
def test_client_sees_only_the_error_of_the_handler(server: ServerProcess, token: str, status: int, detail: str) -> None:
    with someone(server, token) as client:
        response = client.post("/threads", json={})
    assert (response.status_code, response.json()) == (status, {"detail": detail})


def test_authenticate_handler_gets_the_request(server: ServerProcess) -> None:
    thread_id = str(uuid4())
    with someone(server, "echo") as client:
        response = client.get(f"/threads/{thread_id}/state?x=1", headers={"X-Note": "noted"})

    assert response.json()["detail"] == f"GET /threads/{thread_id}/state {{'thread_id': '{thread_id}'}} noted"


def test_public_routes_need_no_authentication(server: ServerProcess) -> None:
    with someone(server, None) as nobody:
        for path in ("/ok", "/", "/info", "/docs", "/metrics"):
            assert nobody.get(path).status_code == 200, path
        described = good(nobody.get("/openapi.json"))

    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert described["security"] == [{"token": []}]


# What is whose


def test_other_users_ids_are_404_on_every_route(alice: httpx2.Client, bob: httpx2.Client, hers: dict[str, str]) -> None:
    before = read_everything(alice, hers)
    looked_at = set()
    for route in ROUTES:
        if route.public or route.tag in PROTOCOLS or not route.path_types:
            continue

        looked_at.add(label(route))
        body = BODIES.get(label(route), {} if route.body_type is not None else None)

        if label(route) == COMMANDS:
            continue

        with bob.stream(route.method, address(route, hers), json=body) as response:
            response.read()
            assert response.status_code == 404, (label(route), response.status_code, response.text)
            assert hers["thread_id"] not in response.text or "{thread_id}" in route.path, label(route)

    assert looked_at >= set(BODIES)
    assert read_everything(alice, hers) == before


@pytest.mark.parametrize("action", ACTIONS)
def test_handlers_are_asked_about_each_action(server: ServerProcess, hers: dict[str, str], action: str) -> None:
    """A caller who may do everything but this one action gets nowhere with it, by any route."""
    refused = {"detail": f"Without {action}."}
    ids = {**hers, "new_id": str(uuid4())}
    with someone(server, f"without {action}") as client:
        for method, path, body in ACTIONS[action]:
            response = client.request(method, fill_in(path, ids), json=fill_in(body, ids))
            assert (response.status_code, response.json()) == (403, refused), (method, path)


def test_every_route_to_a_resource_asks_about_an_action() -> None:
    asking = {f"{method} {path.partition('?')[0]}" for requests in ACTIONS.values() for method, path, _ in requests}
    others = PROTOCOLS | {"system", "debugging", "ui"}
    routes = [route for route in ROUTES if route.tag not in others and route.method != "WEBSOCKET"]
    assert {label(route) for route in routes} - {COMMANDS} <= asking


def test_other_users_runs_are_not_under_ones_own_thread(
    alice: httpx2.Client, bob: httpx2.Client, hers: dict[str, str]
) -> None:
    own = good(bob.post("/threads", json={}))["thread_id"]
    good(bob.post(f"/threads/{own}/runs/wait", json=RUN))
    before = read_everything(alice, hers)
    mixed = {**hers, "thread_id": own}
    looked_at = 0
    for route in ROUTES:
        if "{thread_id}" not in route.path or not {"{run_id}", "{checkpoint_id}"} & set(route.path.split("/")):
            continue

        looked_at += 1
        with bob.stream(route.method, address(route, mixed)) as response:
            response.read()
            assert response.status_code == 404, (label(route), response.status_code, response.text)

    assert looked_at >= 7
    assert read_everything(alice, hers) == before


def test_other_users_threads_take_no_commands(bob: httpx2.Client, hers: dict[str, str]) -> None:
    commands = {
        "run.start": {"assistant_id": "echo", "input": {}},
        "input.respond": {"interrupt_id": "x", "response": 1},
        "state.get": {},
        "state.fork": {"checkpoint_id": hers["checkpoint_id"]},
        "state.listCheckpoints": {},
        "subscription.subscribe": {"channels": ["values"]},
        "agent.getTree": {},
    }

    for method, params in commands.items():
        sent = {"id": 1, "method": method, "params": params}
        response = good(bob.post(f"/threads/{hers['thread_id']}/commands", json=sent))
        assert response["type"] == "error", (method, response)
        # The same error as for a thread that does not exist.
        assert response["error"] in {"no_such_run", "unknown_error"}, (method, response)
        assert "not found" in response["message"], (method, response)


def test_existing_ids_of_other_users_cannot_be_created_again(bob: httpx2.Client, hers: dict[str, str]) -> None:
    thread = hers["thread_id"]
    assistant = hers["assistant_id"]
    for if_exists in ("raise", "do_nothing"):
        wanted = {"thread_id": thread, "if_exists": if_exists}
        assert bob.post("/threads", json=wanted).status_code == 409
        steps = [{"updates": [{"values": {"text": "x"}, "as_node": "__start__"}]}]
        with_state = {**wanted, "metadata": {"graph_id": "echo"}, "supersteps": steps}
        assert bob.post("/threads", json=with_state).status_code == 409
        response = bob.post("/assistants", json={"assistant_id": assistant, "graph_id": "echo", "if_exists": if_exists})
        assert response.status_code == 409

    run = {**RUN, "if_not_exists": "create"}
    assert bob.post(f"/threads/{thread}/runs", json=run).status_code == 404


def test_searches_and_counts_return_only_own_resources(
    alice: httpx2.Client, bob: httpx2.Client, hers: dict[str, str]
) -> None:
    # Other tests of this module make threads, some of which alice shares with bob.
    for asked in ({}, {"metadata": {"owner": "alice"}}, {"ids": [hers["thread_id"]]}):
        assert hers["thread_id"] not in {found["thread_id"] for found in good(bob.post("/threads/search", json=asked))}
        assert hers["thread_id"] in {found["thread_id"] for found in good(alice.post("/threads/search", json=asked))}

    for what, name in (("threads", "thread_id"), ("assistants", "assistant_id"), ("runs/crons", "cron_id")):
        for client, is_there in ((alice, True), (bob, False)):
            found = {one[name] for one in good(client.post(f"/{what}/search", json={"limit": 1000}))}
            assert (hers[name] in found) is is_there
            assert good(client.post(f"/{what}/count", json={})) == len(found)


def test_runs_are_found_only_on_own_threads(alice: httpx2.Client, bob: httpx2.Client, hers: dict[str, str]) -> None:
    for client, is_there in ((alice, True), (bob, False)):
        found = good(client.post("/runs/search", json={"thread_id": hers["thread_id"]}))
        assert (hers["run_id"] in {run["run_id"] for run in found}) is is_there


def test_system_assistant_runs_for_everybody(bob: httpx2.Client) -> None:
    assistant = str(uuid5(SYSTEM_NAMESPACE, "echo"))
    for place in ("", "/graph", "/schemas", "/subgraphs"):
        response = bob.get(f"/assistants/{assistant}{place}")
        assert (response.status_code, response.json()["detail"]) == (404, "Assistant not found"), place

    for name in ("echo", assistant):
        good(bob.post("/runs/wait", json={**RUN, "assistant_id": name}))


EVERY_GRAPH = {"echo", "patient", "asking", "looking", "made_for"}


@pytest.mark.usefixtures("assistant_metadata")
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"created_by": "system"}, EVERY_GRAPH),
        ({"created_by": "system", "team": "red"}, {"echo"}),
        ({"created_by": {"$eq": "system"}, "teams": {"$contains": ["red", "blue"]}}, {"patient"}),
        ({"$or": [{"team": "red"}, {"teams": {"$contains": "blue"}}], "created_by": "system"}, {"echo", "patient"}),
        ({"$and": [{"team": "red"}, {"teams": {"$contains": "blue"}}]}, set()),
        ({"created_by": "alice"}, set()),
    ],
)
def test_filters_hide_system_assistants_from_reads_and_searches(
    server: ServerProcess, wanted: dict[str, Any], found: set[str]
) -> None:
    ids = {str(uuid5(SYSTEM_NAMESPACE, graph)): graph for graph in EVERY_GRAPH}
    with someone(server, json.dumps(wanted)) as reader:
        page = good(reader.post("/assistants/search", json={"limit": 1000}))
        assert {ids[one["assistant_id"]] for one in page if one["assistant_id"] in ids} == found
        assert good(reader.post("/assistants/count", json={})) == len(page)

        for assistant, graph in ids.items():
            path = f"/assistants/{assistant}"
            reads = [reader.get(path), reader.post(f"{path}/versions", json={})]
            assert [read.status_code for read in reads] == [200 if graph in found else 404] * 2, graph

            if graph not in found:  # A found graph may still fail to be made for this user.
                assert {reader.get(path + rest).status_code for rest in ("/graph", "/schemas", "/subgraphs")} == {404}


@pytest.fixture(scope="module")
def assistant_metadata(server: ServerProcess) -> None:
    """Mark two of the graphs' assistants with what filters ask for."""
    with someone(server, json.dumps({"created_by": "system"})) as operator:
        for graph, metadata in (("echo", {"team": "red"}), ("patient", {"teams": ["red", "blue", "green"]})):
            path = f"/assistants/{uuid5(SYSTEM_NAMESPACE, graph)}"
            good(operator.patch(path, json={"metadata": metadata}))


def test_other_users_assistant_cannot_be_run(bob: httpx2.Client, hers: dict[str, str]) -> None:
    stolen = {**RUN, "assistant_id": hers["assistant_id"]}
    for path in ("/runs", "/runs/wait", "/runs/stream"):
        assert bob.post(path, json=stolen).status_code == 404

    assert bob.post("/runs/batch", json=[RUN, stolen]).status_code == 404
    assert bob.post("/runs/crons", json={**EVERY_YEAR, "assistant_id": hers["assistant_id"]}).status_code == 404


def test_members_read_what_owners_change(alice: httpx2.Client, bob: httpx2.Client, server: ServerProcess) -> None:
    made = good(alice.post("/threads", json={"metadata": {"members": ["bob", "reader"]}}))
    thread = f"/threads/{made['thread_id']}"
    assert good(bob.get(thread))["metadata"]["owner"] == "alice"
    assert made["thread_id"] in {found["thread_id"] for found in good(bob.post("/threads/search", json={}))}
    assert bob.patch(thread, json={"ttl": {"ttl": 5}}).status_code == 404
    assert bob.post(f"{thread}/state", json={"values": {}}).status_code == 404
    assert bob.patch(f"{thread}/state", json={"metadata": {"x": 1}}).status_code == 404
    assert bob.delete(thread).status_code == 404

    with someone(server, "reader") as reader:
        assert reader.patch(thread, json={"ttl": {"ttl": 5}}).json() == {"detail": "Readers read."}
        assert reader.delete(thread).json() == {"detail": "Forbidden"}
        assert reader.post("/threads/prune", json={"thread_ids": [made["thread_id"]]}).status_code == 403

    assert good(bob.post("/threads/prune", json={"thread_ids": [made["thread_id"]]})) == {"pruned_count": 0}
    assert good(alice.get(f"{thread}?include=ttl")).get("ttl") is None


def test_what_a_caller_creates_has_to_match_the_filter(server: ServerProcess) -> None:
    creating = {**RUN, "if_not_exists": "create"}
    with someone(server, json.dumps({"owner": "zoe"})) as client:
        for path, body in (
            ("/threads", {}),
            ("/assistants", {"graph_id": "echo"}),
            ("/runs/crons", EVERY_YEAR),
            (f"/threads/{uuid4()}/runs", creating),
        ):
            response = client.post(path, json=body)
            assert (response.status_code, response.json()) == (403, {"detail": "Forbidden"}), path

        assert good(client.post("/threads", json={"metadata": {"owner": "zoe"}}))["metadata"] == {"owner": "zoe"}


def test_threads_of_others_outlive_a_shared_assistant(alice: httpx2.Client, server: ServerProcess) -> None:
    shared = good(alice.post("/assistants", json={"graph_id": "echo", "metadata": {"shared": True}}))["assistant_id"]
    thread = good(alice.post("/threads", json={}))["thread_id"]
    good(alice.post(f"/threads/{thread}/runs/wait", json={**RUN, "assistant_id": shared}))
    with someone(server, json.dumps({"shared": True})) as other:
        good(other.delete(f"/assistants/{shared}?delete_threads=true"))
        assert other.get(f"/assistants/{shared}").status_code == 404

    assert good(alice.get(f"/threads/{thread}"))["metadata"]["assistant_id"] == shared


def test_copy_belongs_to_its_creator(alice: httpx2.Client, bob: httpx2.Client) -> None:
    made = good(alice.post("/threads", json={"metadata": {"members": ["bob"], "note": "kept"}}))
    copied = good(bob.post(f"/threads/{made['thread_id']}/copy"))
    assert copied["metadata"] == {"members": ["bob"], "note": "kept", "owner": "bob"}
    assert good(bob.delete(f"/threads/{copied['thread_id']}")) is None


def test_the_store_is_scoped(alice: httpx2.Client, bob: httpx2.Client) -> None:
    item = {"namespace": ["notes"], "key": "k", "value": {"v": 1}}
    assert alice.put("/store/items", json=item).status_code == 204
    assert good(alice.get("/store/items?namespace=notes&key=k"))["namespace"] == ["alice", "notes"]
    assert good(bob.get("/store/items?namespace=notes&key=k")) is None
    assert good(bob.get("/store/items?namespace=alice.notes&key=k")) is None
    assert good(bob.post("/store/items/search", json={"namespace_prefix": ["alice"]})) == {"items": []}
    assert good(bob.post("/store/namespaces", json={})) == {"namespaces": []}

    assert good(alice.post("/store/namespaces", json={})) == {"namespaces": [["alice", "notes"]]}
    for namespace in (["notes"], ["alice", "notes"]):
        assert bob.request("DELETE", "/store/items", json={"namespace": namespace, "key": "k"}).status_code == 204

    assert good(alice.get("/store/items?namespace=notes&key=k"))["value"] == {"v": 1}


def test_a_filter_of_the_store_is_for_namespaces_and_keys(server: ServerProcess) -> None:
    def codes(token: dict[str, Any], namespace: list[str]) -> list[int]:
        item = {"namespace": namespace, "key": "k"}
        with someone(server, json.dumps(token)) as caller:
            return [
                caller.put("/store/items", json={**item, "value": {}}).status_code,
                caller.get("/store/items", params={"namespace": ".".join(namespace), "key": "k"}).status_code,
                caller.request("DELETE", "/store/items", json=item).status_code,
                caller.post("/store/items/search", json={"namespace_prefix": namespace}).status_code,
                caller.post("/store/namespaces", json={"prefix": namespace}).status_code,
            ]

    for own in ({"namespace": {"$contains": "zoe"}}, {"$or": [{"namespace": {"$contains": ["zoe"]}}]}):
        assert codes(own, ["notes", "zoe"]) == [204, 200, 204, 200, 200]
        assert codes(own, ["notes", "bob"]) == [403] * 5

    # What lies below a namespace has another one.
    assert codes({"namespace": ["notes", "zoe"]}, ["notes", "zoe"]) == [204, 200, 204, 500, 500]
    # Items have no metadata that these could be compared with.
    assert codes({"owner": {"$contains": "zoe"}}, ["notes", "zoe"]) == [500] * 5


def test_user_named_wildcard_sees_no_items(server: ServerProcess) -> None:
    item = {"namespace": ["private"], "key": "k", "value": {}}
    with someone(server, "anna") as anna, someone(server, "*") as everybody:
        assert anna.put("/store/items", json=item).status_code == 204
        for prefix in ([], ["private"], ["*"]):
            assert everybody.post("/store/namespaces", json={"prefix": prefix}).status_code == 422

        assert everybody.put("/store/items", json=item).status_code == 422
        found = good(anna.post("/store/namespaces", json={"prefix": ["*"], "suffix": ["private"]}))

    assert found == {"namespaces": [["anna", "private"]]}


def test_rewritten_namespace_is_validated(server: ServerProcess) -> None:
    with someone(server, "a.b") as dotted:
        assert dotted.get("/store/items?namespace=notes&key=k").status_code == 422
        assert dotted.put("/store/items", json={"namespace": ["n"], "key": "k", "value": {}}).status_code == 422


def test_bulk_cancel_stops_only_own_runs(alice: httpx2.Client, bob: httpx2.Client) -> None:
    thread = good(alice.post("/threads", json={}))["thread_id"]
    run = good(alice.post(f"/threads/{thread}/runs", json={"assistant_id": "patient", "input": {}}))
    for asked in ({"status": "all"}, {"thread_id": thread, "run_ids": [run["run_id"]]}):
        response = bob.post("/runs/cancel", json=asked)
        assert (response.status_code, run["run_id"] in response.text) == (404, False)

    unknown = {"thread_id": thread, "run_ids": [str(uuid4())]}
    assert bob.post("/runs/cancel", json=unknown).json() == response.json(), "he does not learn that it exists"
    assert good(alice.get(f"/threads/{thread}/runs/{run['run_id']}"))["status"] in {"pending", "running"}
    assert alice.post("/runs/cancel", json={"status": "all"}).status_code == 204
    good(alice.get(f"/threads/{thread}/runs/{run['run_id']}/join"))


def test_idempotency_keys_are_per_user(alice: httpx2.Client, bob: httpx2.Client) -> None:
    headers = {"Idempotency-Key": "the-same"}
    body = {**RUN, "on_completion": "keep"}
    runs = [good(client.post("/runs", json=body, headers=headers)) for client in (alice, bob, alice)]
    assert runs[0]["run_id"] == runs[2]["run_id"] != runs[1]["run_id"]

    # Other tests of this module expect that bob has nothing to cancel.
    for client, run in ((alice, runs[0]), (bob, runs[1])):
        good(client.get(f"/threads/{run['thread_id']}/runs/{run['run_id']}/join"))


def test_bad_filter_denies_access(server: ServerProcess, hers: dict[str, str]) -> None:
    with someone(server, "nosy") as nosy:
        response = nosy.get(f"/threads/{hers['thread_id']}")
    assert (response.status_code, response.json()) == (500, {"detail": "Internal Server Error"})


# What graphs are reported


@pytest.mark.needs("langgraph-sdk", "0.3.5")
def test_graph_gets_the_user_of_the_run(server: ServerProcess) -> None:
    root = {"langgraph_auth_user": {"identity": "root"}, "langgraph_auth_user_id": "root", "user_id": "root"}
    spoofed = {"configurable": root}
    with someone(server, "carol") as carol:
        reported = good(carol.post("/runs/wait", json={**RUN, "config": spoofed}, headers={"X-Api-Key": "k"}))[
            "reported"
        ]
        own = good(carol.post("/assistants", json={"graph_id": "made_for"}))["assistant_id"]
        graph = good(carol.get(f"/assistants/{own}/graph"))

    assert reported == {
        "identity": "carol",
        "email": "carol@example.test",
        "permissions": [],
        "user_id": "carol",
        "auth_user_id": "carol",
        "keys": [],
    }

    assert "for_carol" in json.dumps(graph)


def test_thread_created_by_a_run_belongs_to_its_caller(alice: httpx2.Client, bob: httpx2.Client) -> None:
    thread = str(uuid4())
    channels = {"channels": ["values", "lifecycle"]}
    with (
        bob.stream("GET", f"/threads/{thread}/stream") as early,
        bob.stream("POST", f"/threads/{thread}/stream/events", json=channels) as by_channel,
    ):
        assert [early.status_code, by_channel.status_code] == [200, 200]
        good(alice.post(f"/threads/{thread}/runs/wait", json={**RUN, "if_not_exists": "create"}))
        # An event ends the loop at once; without one the stream ends.
        for stream in (early, by_channel):
            assert not any(b"event:" in piece for piece in stream.iter_bytes())

    assert good(alice.get(f"/threads/{thread}"))["metadata"]["owner"] == "alice"
    assert bob.get(f"/threads/{thread}").status_code == 404


def test_websocket_opened_before_its_thread_gets_no_events_of_another_user(
    server: ServerProcess, alice: httpx2.Client
) -> None:
    thread = str(uuid4())
    url = f"{server.url.replace('http', 'ws')}/threads/{thread}/stream/events"
    with connect(url, additional_headers={"Authorization": "Bearer bob"}) as socket:
        subscribing = {"id": 1, "method": "subscription.subscribe", "params": {"channels": ["values"]}}
        socket.send(json.dumps(subscribing))
        assert json.loads(socket.recv(60))["type"] == "success"

        good(alice.post(f"/threads/{thread}/runs/wait", json={**RUN, "if_not_exists": "create"}))
        with pytest.raises(ConnectionClosed):
            socket.recv(60)


async def test_reused_thread_id_gets_no_events_of_the_deleted_thread(alice: httpx2.Client, bob: httpx2.Client) -> None:
    thread = str(uuid4())
    good(alice.post("/threads", json={"thread_id": thread}))
    good(alice.post(f"/threads/{thread}/runs/wait", json={**RUN, "stream_resumable": True}))
    assert good(alice.post("/threads/prune", json={"thread_ids": [thread]})) == {"pruned_count": 1}

    def read_stream(method: str, path: str, **given: Any) -> bytes:
        received = b""
        with bob.stream(method, f"/threads/{thread}/{path}", **given) as response:
            for piece in response.iter_bytes():
                received += piece
                if b'"bob"' in received:
                    break

        return received

    async def hears_only_himself() -> bool:
        bob.post("/threads/prune", json={"thread_ids": [thread]})
        good(bob.post("/threads", json={"thread_id": thread}))
        good(bob.post(f"/threads/{thread}/runs/wait", json=RUN))
        of_thread = read_stream("GET", "stream?stream_modes=run_modes", headers={"Last-Event-ID": "0-0"})
        return b"alice" not in of_thread + read_stream("POST", "stream/events", json={"channels": ["values"]})

    await eventually(hears_only_himself)


async def test_a_cron_runs_for_its_owner(server: ServerProcess) -> None:
    async with get_client(url=server.url, api_key="", headers={"Authorization": "Bearer dora"}) as dora:
        thread = await dora.threads.create()
        cron = await dora.crons.create_for_thread(
            thread["thread_id"], "echo", schedule="* * * * * *", input={"text": "hi"}
        )
        assert cron["user_id"] == "dora"
        assert cron["metadata"] == {"owner": "dora"}

        async def has_run() -> dict[str, Any] | None:
            return (await dora.threads.get(thread["thread_id"]))["values"]

        try:
            assert (await eventually(has_run))["reported"]["user_id"] == "dora"
            run = (await dora.runs.list(thread["thread_id"]))[0]
            owner = run["kwargs"]["config"]["configurable"]["langgraph_auth_user"]
            # Her permissions may change until it fires.
            assert (owner["identity"], sorted(owner)) == ("dora", ["display_name", "identity", "is_authenticated"])
        finally:
            await dora.crons.delete(cron["cron_id"])
