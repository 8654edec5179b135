"""Every route of the agent server over a real server.

Invalid JSON values are refused with the name of their field before anything is stored. Every error has one shape:
`{"detail": …}`, and a failed validation lists the fields under `errors`.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest

from portside.agent.served_routes import ROUTES
from portside.kernel.http.routes import Route
from tests.servers import ServerProcess, agent_server

SOME_ID = "0190a0c0-0000-7000-8000-000000000001"
# What a handler's own rules want before it looks at anything else.
NEEDED: dict[str, dict[str, Any]] = {"assistant_id": {"assistant_id": "echo"}, "graph_id": {"graph_id": "echo"}}
LEFT_OUT = {"/profile"}
DEEP = {"a": 1}
for _ in range(250):
    DEEP = {"a": DEEP}  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose project has components, so that it has their routes as well."""
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), GRAPH_UI='{"agent": "./ui.tsx"}') as running:
        yield running


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=300) as client:
        yield client


@pytest.fixture(scope="module")
def ids(http: httpx2.Client) -> dict[str, str]:
    """Things that exist, by the name of the parameter that names them; a new one is not needed for each call."""
    thread_id = http.post("/threads", json={}).json()["thread_id"]
    run = http.post(f"/threads/{thread_id}/runs", json={"assistant_id": "echo", "input": {"messages": []}}).json()
    http.get(f"/threads/{thread_id}/runs/{run['run_id']}/join")
    state = http.get(f"/threads/{thread_id}/state").json()

    return {
        "thread_id": thread_id,
        "run_id": run["run_id"],
        "assistant_id": run["assistant_id"],
        "checkpoint_id": state["checkpoint"]["checkpoint_id"],
    }


def label(route: Route) -> str:
    return f"{route.method} {route.path}"


def address(route: Route, known: dict[str, str]) -> str:
    path = route.path
    for name in route.path_types:
        # What a route deletes has to stay there for the others.
        path = path.replace(f"{{{name}}}", SOME_ID if route.method == "DELETE" else known.get(name, SOME_ID))

    return path


def send(http: httpx2.Client, route: Route, path: str, **request: Any) -> tuple[int, Any]:
    """Send a request and return the status and the error's JSON; what succeeds is not read to its end."""
    with http.stream(route.method, path, **request) as response:
        if response.status_code < 400:
            return response.status_code, None
        response.read()

    where = f"{label(route)} {request} {response.text}"
    assert response.status_code < 500, where
    assert response.headers["content-type"] == "application/json", where
    body = response.json()
    assert isinstance(body["detail"], str), where
    assert body["detail"], where

    if response.status_code == 422:
        assert set(body) == {"detail", "errors"}, where
        assert all(problem["loc"][0] in {"body", "query", "path", "header"} for problem in body["errors"]), where
    else:
        # The clients of a protocol look for an error of its own form, which may stand beside ours.
        assert set(body) - ({"error"} if route.tag == "a2a" else set()) == {"detail"}, where

    return response.status_code, body


def fields(kind: Any) -> list[str]:
    structs = [part for part in getattr(kind, "__args__", (kind,)) if hasattr(part, "__struct_fields__")]
    return [field.encode_name for part in structs for field in msgspec.structs.fields(part)]


WITH_BODY = [route for route in ROUTES if route.body_type is not None]
# What waits for a run or streams it reads the same body as what only starts it.
STARTING = [route for route in WITH_BODY if not route.path.endswith(("/wait", "/stream"))]
WITH_QUERY = [route for route in ROUTES if route.query_type is not None and route.path not in LEFT_OUT]


@pytest.mark.parametrize("route", [route for route in ROUTES if route.path_types], ids=label)
@pytest.mark.parametrize("value", ["not-an-id", "%00", "%ff", "a" * 3000, "%2e%2e", "-1", str(2**70)])
def test_no_id_breaks_a_route(http: httpx2.Client, ids, route: Route, value: str) -> None:
    for name in route.path_types:
        path = address(route, {**ids, name: value}).replace(SOME_ID, value)
        send(http, route, path, content=b'{"assistant_id":"echo"}')


@pytest.mark.parametrize("route", WITH_BODY, ids=label)
def test_no_body_breaks_a_route(http: httpx2.Client, ids, route: Route) -> None:
    bodies = [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"7",
        b"\xff\xfe",
        b"[" * 1000,
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b'{"a":"\\ud800"}',
        b'{"a":NaN}',
        b'{"assistant_id":"echo","assistant_id":"echo"}',
        json.dumps({f"f{i}": i for i in range(5000)}).encode(),
    ]

    for body in bodies:
        status, said = send(http, route, address(route, ids), content=body)
        if body.startswith((b'{"a":"', b'{"a":N', b'{"a":{')):
            assert (status, said["errors"][0]["loc"][:2]) == (422, ["body", "a"]), label(route)


QUERY_VALUES = ["", "x", "-1", "0", "1e9", str(2**31), str(2**70), "null", "a\0b", "é" * 1000]


def check_query_values(http: httpx2.Client, ids: dict[str, str], values: Iterator[str]) -> None:
    """Call each route once for each field of its query, with the next value."""
    for route in WITH_QUERY:
        for name in fields(route.query_type):
            value = next(values)
            status, said = send(http, route, address(route, ids), params={name: value}, content=b"{}")
            if "\0" in value:
                assert (status, said["errors"][0]["loc"]) == (422, ["query", name]), label(route)


@pytest.mark.parametrize("value", QUERY_VALUES)
def test_no_query_value_breaks_a_route(http: httpx2.Client, ids, value: str) -> None:
    check_query_values(http, ids, itertools.repeat(value))


def test_query_values_in_turns_break_no_route(http: httpx2.Client, ids) -> None:
    """Each value meets many routes, for the cost of one value."""
    check_query_values(http, ids, itertools.cycle(QUERY_VALUES))


HOSTILE = {
    "null": b"null",
    "zero": b"0",
    "negative": b"-1",
    "minus zero": b"-0.0",
    "int32": b"2147483648",
    "uint64": b"18446744073709551615",
    "too large": b"1180591620717411303424",
    "nan": b"NaN",
    "infinite": b"1e999",
    "fraction": b"1.5",
    "true": b"true",
    "empty": b'""',
    "nul": b'"a\\u0000b"',
    "nul key": b'{"a\\u0000b":1}',
    "surrogate": b'["\\ud800"]',
    "no utf-8": b'"\xff"',
    "long": b'"' + b"x" * 20_000 + b'"',
    "list": b"[]",
    "object": b"{}",
    "list of null": b"[null]",
    "list of objects": b"[{}]",
    "list of lists": b'[["a"],[1]]',
    "deep": json.dumps(DEEP).encode(),
    "quote": b'"\'; drop table runs; --"',
    "path": b'"$.a[*]..b"',
}
UNFIT = {"too large", "nan", "infinite", "nul", "nul key", "surrogate", "no utf-8", "deep"}


def check_field_values(http: httpx2.Client, ids: dict[str, str], kinds: Iterator[str]) -> None:
    """Call each route once for each field of its body, with the next value beside what the route cannot do without."""
    for route in STARTING:
        names = fields(route.body_type)
        needed = {key: value for name, held in NEEDED.items() if name in names for key, value in held.items()}
        for name in names:
            kind = next(kinds)
            rest = json.dumps({key: value for key, value in needed.items() if key != name})[1:-1].encode()
            body = b'{"%b":%b%b}' % (name.encode(), HOSTILE[kind], b"," + rest if rest else b"")

            status, said = send(http, route, address(route, ids), content=body)
            if kind in UNFIT:
                assert (status, said["errors"][0]["loc"][:2]) == (422, ["body", name]), f"{label(route)} {said}"


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_value_of_a_field_breaks_a_route(http: httpx2.Client, ids, kind: str) -> None:
    check_field_values(http, ids, itertools.repeat(kind))


@pytest.mark.parametrize("first", [0, 8, 16])
def test_field_values_in_turns_break_no_route(http: httpx2.Client, ids, first: int) -> None:
    """Each value meets many routes and fields, for the cost of three values."""
    check_field_values(http, ids, itertools.islice(itertools.cycle(HOSTILE), first, None))


def test_what_was_refused_left_nothing_behind(http: httpx2.Client) -> None:
    before = http.post("/threads/count", json={}).json()
    hostile = [b'{"metadata":{"a":"\\u0000"}}', b'{"metadata":{"n":1180591620717411303424}}', b'{"metadata":7}']
    for body in hostile:
        assert http.post("/threads", content=body).status_code == 422
        assert http.post("/runs", content=b'{"assistant_id":"echo",' + body[1:]).status_code == 422

    assert http.post("/threads/count", json={}).json() == before
