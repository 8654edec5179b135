"""What an agent server says of itself, and how it speaks HTTP."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from portside.kernel.version import full_version
from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

THREAD = "01a1fbd3-88f9-7738-8000-000000000000"
PAGE = {"origin": "https://page.example"}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("agent")
    with agent_server(module_database, folder, DEBUG_FOLDER=str(folder / "dumps"), MOUNT_PREFIX="/my/agent") as running:
        yield running


@pytest.fixture
def root(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=300) as client:
        yield client


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{server.url}/my/agent", timeout=300) as client:
        yield client


def test_health(http: httpx2.Client) -> None:
    for path in ("/ok", "/"):
        assert http.get(path).json() == {"ok": True, "services": {"postgres": True}}
        assert http.get(path, params={"check_db": "1"}).json()["services"] == {"postgres": True}
        assert http.get(path, params={"check_db": "0"}).json() == {"ok": True, "services": {}}
        assert http.head(path).status_code == 200


def test_only_health_and_metrics_answer_at_the_root_too(root: httpx2.Client) -> None:
    assert [root.get(path).status_code for path in ("/ok", "/metrics", "/my/agent/ok")] == [200, 200, 200]
    for path in ("/", "/info", "/openapi.json", "/docs", "/threads/search", "/my", "/my/agentx/ok"):
        response = root.get(path)
        assert (response.status_code, response.json()) == (404, {"detail": "Not Found"}), path


def test_info(http: httpx2.Client) -> None:
    info = http.get("/info").json()
    assert set(info) == {"version", "langgraph_py_version", "flags", "host"}
    assert info["version"] == full_version()

    assert info["flags"] == {
        "assistants": True,
        "crons": True,
        "langsmith": False,
        "langsmith_tracing_replicas": False,
        "langsmith_tracing_session_on_runs": False,
    }

    names = ("project_id", "host_revision_id", "revision_id", "tenant_id")
    assert info["host"] == {"kind": "self-hosted", **dict.fromkeys(names)}


def test_metrics_for_prometheus(http: httpx2.Client) -> None:
    http.get(f"/threads/{THREAD}")
    response = http.get("/metrics", params={"format": "whatever"})
    assert response.headers["content-type"].startswith("text/plain; version=")
    counted = r'lg_api_http_requests_total{method="GET",path="/threads/{thread_id}",status="404"} '
    assert counted in response.text
    names = set(re.findall(r"^(\w+)[{ ]", response.text, re.MULTILINE))

    wanted = {
        "lg_api_http_requests_latency_bucket",
        "lg_api_workers_max",
        "lg_api_workers_active",
        "lg_api_workers_available",
        "lg_api_num_pending_runs",
        "lg_api_num_running_runs",
        "lg_api_num_ready_runs",
        "lg_api_pending_runs_wait_time_max",
        "lg_api_pending_runs_wait_time_med",
        "lg_api_streams_open",
        "lg_api_run_admission_seconds_bucket",
        "lg_api_run_claim_seconds_bucket",
        "lg_api_run_retries_total",
        "lg_api_run_queue_wait_time_1st_attempt_bucket",
        "lg_api_pg_pool_size",
        "lg_api_pg_pool_max",
        "lg_api_pg_pool_available",
        "python_info",
        "process_open_fds",
        "target_info",
    }

    assert wanted <= names, wanted - names


async def test_metrics_as_json_count_the_queue(http: httpx2.Client) -> None:
    thread_id = http.post("/threads", json={}).json()["thread_id"]
    for _ in range(2):
        http.post(f"/threads/{thread_id}/runs", json={"assistant_id": "echo", "after_seconds": 3600})

    async def counted() -> Any:
        """Return the metrics once they count the runs: they are up to a second old."""
        found = http.get("/metrics", params={"format": "json"}).json()
        return found if found["queue"]["n_pending"] == 2 and found["workers"]["active"] == 0 else None

    found = await eventually(counted)
    assert set(found) == {"queue", "api", "workers", "idle_s"}
    assert found["queue"]["n_running"] == 0

    assert {name for name, value in found["queue"].items() if isinstance(value, (int, float))} == {
        "n_pending",
        "n_running",
        "pending_runs_wait_time_max_secs",
        "pending_runs_wait_time_med_secs",
        "pending_unblocked_runs_wait_time_max_secs",
    }

    assert found["workers"] == {"max": 10, "active": 0, "available": 10}
    assert {"method", "path", "status", "count"} == set(found["api"]["http_requests_total"][0])


def test_the_openapi_document_and_its_page(http: httpx2.Client) -> None:
    document = http.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    graphs = document["components"]["schemas"]["AssistantCreate"]["properties"]["graph_id"]["enum"]
    assert {"echo", "approval"} <= set(graphs)
    unprocessable = document["paths"]["/threads"]["post"]["responses"]["422"]["content"]["application/json"]["schema"]
    assert unprocessable == {"$ref": "#/components/schemas/TextBody"}
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")

    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script>" in page.text


def test_debugging_routes_show_heap_and_profile(http: httpx2.Client) -> None:
    dump = http.post("/heapdump").json()
    assert json.loads(Path(dump["path"]).read_text())["objects"] > 1000
    profile = http.get("/profile", params={"seconds": 0.2})
    assert profile.headers["content-type"].startswith("text/plain")
    assert re.fullmatch(r"(?:.+ \d+\n)+", profile.text)

    for seconds in ("0", "61", "nan", "x"):
        assert http.get("/profile", params={"seconds": seconds}).status_code == 422


def test_trailing_slash_redirect_keeps_the_prefix_and_the_query(http: httpx2.Client) -> None:
    response = http.post("/threads/search/?a=1", json={})
    assert (response.status_code, response.headers["location"]) == (307, "/my/agent/threads/search?a=1")
    assert (
        http.post("/threads/search/?a=1", json={}, follow_redirects=True).json()
        == http.post("/threads/search", json={}).json()
    )


def test_pages_may_call_and_read_errors_too(http: httpx2.Client) -> None:
    for response in (
        http.get("/info", headers=PAGE),
        http.get("/nope", headers=PAGE),
        http.put("/threads", headers=PAGE),
    ):
        assert response.headers["access-control-allow-origin"] == "*"
        assert response.headers["vary"] == "Origin"

    asked = {"access-control-request-method": "DELETE", "access-control-request-headers": "x-api-key"}
    before = http.options(f"/threads/{THREAD}", headers={**PAGE, **asked})
    assert (before.status_code, before.headers["access-control-allow-headers"]) == (200, "x-api-key")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "detail"),
    [
        ("GET", "/threads/abc", None, 422, "Invalid thread ID: must be a UUID"),
        ("GET", "/assistants/abc", None, 422, "Invalid assistant ID: must be a UUID"),
        ("GET", f"/threads/{THREAD}/runs/abc", None, 422, "Invalid run ID: must be a UUID"),
        ("GET", "/nope", None, 404, "Not Found"),
        ("DELETE", "/threads", None, 405, "Method Not Allowed"),
        ("POST", "/threads", b"", 422, "Invalid JSON in request body"),
        ("POST", "/threads", b"{", 422, "Invalid JSON in request body"),
        ("POST", "/threads/search", b'{"limit":0}', 422, "body.limit: Expected `int` >= 1"),
        ("POST", "/threads", b'{"metadata":{"a":["\\u0000"]}}', 422, "body.metadata.a.0: must not hold a NUL"),
        (
            "POST",
            "/runs/wait",
            b'{"assistant_id":"echo","input":{"n":1180591620717411303424}}',
            422,
            "body.input.n: must be an integer of at most 64 bits",
        ),
    ],
)
def test_errors_are_text(http: httpx2.Client, method: str, path: str, body: Any, status: int, detail: str) -> None:
    response = http.request(method, path, content=body)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    found = response.json()
    assert found["detail"].startswith(detail)
    assert set(found) == ({"detail", "errors"} if status == 422 else {"detail"})

    if status == 405:
        assert response.headers["allow"] == "POST"


def test_any_content_type_is_read_and_ignored_parameters_are_named(http: httpx2.Client) -> None:
    response = http.post(
        "/threads/search?zap=1", content=b'{"limit":1,"zip":2}', headers={"content-type": "text/plain"}
    )
    assert (response.status_code, response.headers["x-ignored-fields"]) == (200, "zap, zip")
