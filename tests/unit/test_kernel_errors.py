import pytest

from portside.kernel.errors import Invalid, PortsideError, Problem, error_classes
from portside.kernel.http.routes import Context, Route
from tests.unit.kernel_server import serve

KERNEL = [error for error in error_classes() if error.__module__ == "portside.kernel.errors"]


def raising(error: Exception) -> Route:
    async def fail(_ctx: Context) -> None:
        raise error

    return Route("GET", "/fail", fail, "t", public=True)


@pytest.mark.parametrize("kind", KERNEL, ids=lambda kind: kind.__name__)
async def test_every_kind_of_error_has_the_one_shape(kind: type[PortsideError]) -> None:
    error = Invalid([Problem(["body", "name"], "too long", "value_error")]) if kind is Invalid else kind()
    async with serve([raising(error)]) as served:
        answer = await served.client.get("/fail")
    assert answer.status_code == kind.status
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["detail"]
    if kind is Invalid:
        assert answer.json() == {"detail": [{"loc": ["body", "name"], "msg": "too long", "type": "value_error"}]}
    else:
        assert answer.json()["detail"] == (kind.__doc__ or "").split("\n")[0]


async def test_a_message_and_headers_of_its_own() -> None:
    from portside.kernel.errors import TooManyRequests

    async with serve([raising(TooManyRequests("Slowly.", headers={"Retry-After": "7"}))]) as served:
        answer = await served.client.get("/fail")
    assert (answer.json(), answer.headers["retry-after"]) == ({"detail": "Slowly."}, "7")


def test_codes_and_statuses_are_plain_and_codes_are_not_shared() -> None:
    codes = [error.code for error in KERNEL]
    assert len(set(codes)) == len(codes)
    assert all(400 <= error.status < 600 for error in KERNEL)


@pytest.mark.parametrize("inner", [ValueError, KeyError, AssertionError, RecursionError])
async def test_what_nobody_expected_tells_the_caller_nothing(inner: type[Exception]) -> None:
    async with serve([raising(inner("password hunter2 of /srv/data"))]) as served:
        answer = await served.client.get("/fail")
    assert answer.status_code == 500
    assert answer.json() == {"detail": PortsideError().message}
    assert "hunter2" not in str(answer.headers)


@pytest.mark.parametrize("inner", [ConnectionRefusedError, TimeoutError])
async def test_a_dependency_that_does_not_answer_is_503(inner: type[Exception]) -> None:
    async with serve([raising(inner("host db-7 port 5432"))]) as served:
        answer = await served.client.get("/fail")
    assert answer.status_code == 503
    assert "db-7" not in answer.text
