"""Every error becomes one JSON shape with a stable code, and reveals nothing about unexpected failures."""

import json

import msgspec
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from portside.kernel.errors import (
    Invalid,
    NotSupported,
    PortsideError,
    Problem,
    TooManyRequests,
    Unavailable,
    error_classes,
)
from portside.kernel.http.error_responses import ErrorFormat, build_error_response
from portside.kernel.http.routes import Context, Routes
from tests.unit.kernel_server import serve

pytestmark = pytest.mark.asyncio(loop_scope="module")
KERNEL = [error for error in error_classes() if error.__module__ == "portside.kernel.errors"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fail():
    """Let a handler raise an error, and return the response."""
    raised: list[Exception] = []
    routes = Routes("t")

    @routes.get("/fail", public=True)
    async def handler(_ctx: Context) -> None:
        raise raised.pop()

    async with serve(routes) as served:

        async def fail(error: Exception):
            raised.append(error)
            return await served.client.get("/fail")

        yield fail


@pytest.mark.parametrize("kind", KERNEL, ids=lambda kind: kind.__name__)
async def test_every_error_class_has_the_same_json_shape(fail, kind: type[PortsideError]) -> None:
    error = Invalid([Problem(["body", "name"], "too long", "value_error")]) if kind is Invalid else kind()
    response = await fail(error)
    assert response.status_code == kind.status
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["detail"]

    if kind is Invalid:
        assert response.json() == {"detail": [{"loc": ["body", "name"], "msg": "too long", "type": "value_error"}]}
    else:
        assert response.json()["detail"] == (kind.__doc__ or "").split("\n")[0]


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem(["body", "input", "messages", 0], "no", "type_error"), "body.input.messages.0: no"),
        (
            Problem(["path", "thread_id"], "Invalid thread ID: must be a UUID", "uuid_parsing"),
            "Invalid thread ID: must be a UUID",
        ),
        (Problem(["body"], "Invalid JSON in request body: truncated", "json_invalid"), "Invalid JSON in request body"),
        (Problem(["query", "id"], "Invalid UUID", "uuid_parsing"), "query.id: Invalid UUID"),
    ],
)
async def test_agent_servers_describe_validation_errors_as_text(problem: Problem, text: str) -> None:
    response = build_error_response(Invalid([problem, Problem(["query", "limit"], "small", "x")]), ErrorFormat.TEXT)
    said = json.loads(response.body)
    assert said["detail"] == f"{text}; query.limit: small"
    assert said["errors"] == [msgspec.to_builtins(problem), {"loc": ["query", "limit"], "msg": "small", "type": "x"}]


@pytest.mark.parametrize("state", ["22003", "22P02", "22001", "54000", "22P05"])
async def test_values_that_postgres_rejects_get_400(fail, state: str) -> None:
    error = ValueError("value 99 of column secret")
    error.sqlstate = state  # type: ignore[attr-defined]
    response = await fail(error)
    assert response.status_code == 400
    assert "secret" not in response.text


@pytest.mark.parametrize(("error", "level"), [(NotSupported(), "info"), (Unavailable(), "error")])
async def test_not_supported_is_logged_as_info_and_unavailable_as_error(fail, error: PortsideError, level: str) -> None:
    with capture_logs() as logged:
        assert (await fail(error)).status_code == error.status

    assert level in [line["log_level"] for line in logged if line["event"] != "request"]
    assert [line for line in logged if line["log_level"] == "error"] == ([] if level == "info" else [logged[0]])


async def test_error_can_have_its_own_message_and_headers(fail) -> None:
    response = await fail(TooManyRequests("Slowly.", headers={"Retry-After": "7"}))
    assert (response.json(), response.headers["retry-after"]) == ({"detail": "Slowly."}, "7")


async def test_error_codes_are_valid_and_unique() -> None:
    codes = [error.code for error in KERNEL]
    assert len(set(codes)) == len(codes)
    assert all(400 <= error.status < 600 for error in KERNEL)


@pytest.mark.parametrize("inner", [ValueError, KeyError, AssertionError, RecursionError])
async def test_unexpected_exception_reveals_nothing_to_the_client(fail, inner: type[Exception]) -> None:
    response = await fail(inner("password hunter2 of /srv/data"))
    assert response.status_code == 500
    assert response.json() == {"detail": PortsideError().message}
    assert "hunter2" not in str(response.headers)


@pytest.mark.parametrize("inner", [ConnectionRefusedError, TimeoutError])
async def test_unreachable_dependency_gets_503(fail, inner: type[Exception]) -> None:
    response = await fail(inner("host db-7 port 5432"))
    assert response.status_code == 503
    assert "db-7" not in response.text
