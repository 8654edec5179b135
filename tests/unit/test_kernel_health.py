"""`GET /ok` fails while a dependency does not answer, and says which programs the server cannot keep running."""

import pytest

from portside.kernel.http.health import HealthChecks, HealthServices, routes
from tests.unit.kernel_server import serve

PROBLEM = "The embedded Postgres cannot be kept running; the next attempt is in 4 seconds."


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("problem", [None, PROBLEM])
async def test_ok_says_what_does_not_answer_and_what_cannot_be_restarted(answers: bool, problem: str | None):  # noqa: FBT001
    async def check() -> bool:
        return answers

    health = HealthChecks({"postgres": check}, {"postgres": lambda: problem, "listener": lambda: None})
    async with serve(routes, services=HealthServices(db=None, health=health)) as served:
        response = await served.client.get("/ok")

    # What cannot be restarted now may still answer.
    assert response.status_code == (200 if answers else 500)
    expected = {"ok": answers, "services": {"postgres": answers}}
    assert response.json() == expected | ({"problems": {"postgres": problem}} if problem else {})


async def test_liveness_asks_no_dependency():
    async def check() -> bool:
        raise AssertionError("the database was asked")

    health = HealthChecks({"postgres": check}, {"listener": lambda: PROBLEM})
    async with serve(routes, services=HealthServices(db=None, health=health)) as served:
        response = await served.client.get("/ok?check_db=0")

    assert (response.status_code, response.json()) == (200, {"ok": True, "services": {}})
