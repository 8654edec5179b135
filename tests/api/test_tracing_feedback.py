"""Feedback over HTTP and with the stock client, and the tokens of those who have no key."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from langsmith import Client
from langsmith.utils import LangSmithNotFoundError

from tests.api.hosted import Hosted, open_hosted

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        yield running


async def run_in(server: Hosted, project: str) -> tuple[str, str]:
    """Store a run; return its id and its project's."""
    run_id = str(uuid4())
    run = {"id": run_id, "name": "r", "run_type": "chain", "session_name": project}
    assert (await server.client.post("/runs", json=run)).status_code == 202
    return run_id, (await server.client.get(f"/runs/{run_id}")).json()["session_id"]


async def give(server: Hosted, **body: Any) -> dict[str, Any]:
    response = await server.client.post("/feedback", json=body)
    assert response.status_code == 200, response.text
    given: dict[str, Any] = response.json()
    return given


async def keys(server: Hosted, **params: Any) -> set[str]:
    response = await server.client.get("/feedback", params=params)
    assert response.status_code == 200, response.text
    return {feedback["key"] for feedback in response.json()}


async def test_the_sdk_creates_reads_changes_and_deletes_feedback(server: Hosted):
    run_id, project_id = await run_in(server, "sdk")
    client = Client(api_url=server.url, api_key=server.key)

    def work() -> None:
        plain = client.create_feedback(run_id, "plain", score=1, comment="x", value={"a": [1]}, session_id=project_id)
        client.create_feedback(run_id, "traced", score=0.5, trace_id=run_id, session_id=project_id)
        client.flush(timeout=300)
        read = client.read_feedback(plain.id)

        assert (read.key, read.score, read.comment, read.value, str(read.trace_id)) == (
            "plain",
            1,
            "x",
            {"a": [1]},
            run_id,
        )

        assert str(read.session_id) == project_id
        client.update_feedback(plain.id, score=0, correction={"y": 2})
        read = client.read_feedback(plain.id)
        assert (read.score, read.comment, read.correction) == (0, "x", {"y": 2})
        assert {f.key: f.score for f in client.list_feedback(run_ids=[run_id])} == {"plain": 0, "traced": 0.5}
        assert [f.key for f in client.list_feedback(run_ids=[run_id], feedback_key=["traced"])] == ["traced"]
        client.delete_feedback(plain.id)

        with pytest.raises(LangSmithNotFoundError):
            client.read_feedback(plain.id)

    await asyncio.to_thread(work)


async def test_lists_are_filtered(server: Hosted):
    run_id, project_id = await run_in(server, "filters")
    forged = {"type": "app", "user_id": str(uuid4())}
    await give(server, run_id=run_id, key="yes", score=True, feedback_source=forged)
    await give(server, run_id=run_id, key="said", comment="hm", feedback_source={"type": "model"})
    await give(server, session_id=project_id, key="whole", score=0.1)

    here = {"session": project_id}
    assert await keys(server, **here) == {"yes", "said", "whole"}
    assert await keys(server, **here, level="run") == {"yes", "said"}
    assert await keys(server, **here, level="session") == {"whole"}
    assert await keys(server, **here, has_score=True) == {"yes", "whole"}
    assert await keys(server, **here, has_comment=True) == {"said"}
    assert await keys(server, **here, has_comment=False) == {"yes", "whole"}

    assert await keys(server, **here, source=["app", "model"]) == {"yes", "said"}
    assert await keys(server, **here, user=str(server.actor.user_id)) == {"yes", "said", "whole"}
    assert await keys(server, **here, user=forged["user_id"]) == set(), "a key speaks for its own user alone"
    assert len((await server.client.get("/feedback", params={**here, "limit": 2})).json()) == 2
    assert len((await server.client.get("/feedback", params={**here, "limit": 2, "offset": 2})).json()) == 1


async def test_feedback_never_goes_back_in_time(server: Hosted):
    run_id, _ = await run_in(server, "order")
    latest = {"run_id": run_id, "key": "k", "id": str(uuid4()), "score": 1, "modified_at": "2099-01-01T00:00:00Z"}
    await give(server, **latest)
    assert (await give(server, **{**latest, "score": 0, "modified_at": "2098-01-01T00:00:00Z"}))["score"] == 1

    changed = (await server.client.patch(f"/feedback/{latest['id']}", json={"comment": "c"})).json()
    assert (changed["score"], changed["comment"], changed["modified_at"][:4]) == (1, "c", "2099")
    assert (await give(server, **{**latest, "score": 0.5}))["score"] == 0.5, "of two equal times the later write"


async def test_feedback_without_a_run_or_project_is_refused(server: Hosted):
    for body, field in (
        ({"key": "k"}, "run_id"),
        ({"key": "k" * 181, "run_id": str(uuid4())}, "key"),
        ({"key": "k", "run_id": str(uuid4()), "score": "high"}, "score"),
        ({"key": "k", "session_id": str(uuid4())}, "session_id"),
    ):
        response = await server.client.post("/feedback", json=body)
        assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, ["body", field])


async def test_another_workspace_cannot_see_or_change_feedback(server: Hosted):
    run_id, _ = await run_in(server, "mine")
    given = await give(server, run_id=run_id, key="mine", score=1)
    token = await ask_token(server, run_id)

    headers = {"x-api-key": await server.new_key(workspace_id=await server.new_workspace("Others"))}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as other:
        path = f"/feedback/{given['id']}"
        assert (await other.get(path)).status_code == 404
        assert (await other.patch(path, json={"score": 0})).status_code == 404
        assert (await other.delete(path)).status_code == 404
        assert (await other.get("/feedback", params={"run": run_id})).json() == []
        assert (await other.get("/feedback/tokens", params={"run_id": run_id})).json() == []
        await other.post("/feedback", json={"id": given["id"], "run_id": run_id, "key": "mine", "score": 0})

    assert (await server.client.get(f"/feedback/{given['id']}")).json()["score"] == 1
    assert token["url"].startswith(server.url)


async def ask_token(server: Hosted, run_id: str, **fields: Any) -> dict[str, Any]:
    response = await server.client.post("/feedback/tokens", json={"run_id": run_id, "feedback_key": "stars", **fields})
    assert response.status_code == 200, response.text
    token: dict[str, Any] = response.json()
    return token


async def test_a_token_accepts_one_piece_of_feedback_without_a_key(server: Hosted):
    run_id, _ = await run_in(server, "tokens")
    token = await ask_token(server, run_id, expires_in={"days": 1})
    ends = datetime.fromisoformat(token["expires_at"])
    assert timedelta(hours=23) < ends - datetime.now(UTC) <= timedelta(days=1)
    by_default = datetime.fromisoformat((await ask_token(server, str(uuid4())))["expires_at"])
    assert timedelta(hours=2) < by_default - datetime.now(UTC) <= timedelta(hours=3)

    async with httpx2.AsyncClient() as nobody:
        assert (await nobody.get(token["url"], params={"score": 0.25, "comment": "first"})).status_code == 200
        assert (await nobody.post(token["url"], json={"score": 1, "metadata": {"m": 1}})).status_code == 200
        (given,) = (await server.client.get("/feedback", params={"run": run_id})).json()
        assert (given["key"], given["score"], given["comment"]) == ("stars", 1, None)
        assert (given["feedback_source"]["type"], given["feedback_source"]["metadata"]) == ("app", {"m": 1})
        await server.db.pool.execute("update feedback_tokens set expires_at = now()")
        assert (await nobody.get(token["url"])).status_code == 404

        assert (await nobody.post(token["url"], json={"score": 1})).status_code == 404
        assert (await server.client.get("/feedback/tokens", params={"run_id": run_id})).json() == []

    for field, wrong in (
        ("expires_at", "2020-01-01T00:00:00Z"),
        ("expires_at", "2099-01-01T00:00:00Z"),
        ("expires_in", {"days": 3660, "minutes": 1}),
        ("expires_in", {}),
    ):
        body = {"run_id": run_id, "feedback_key": "k", field: wrong}
        refused = await server.client.post("/feedback/tokens", json=body)
        assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["body", field]), wrong


async def test_the_sdk_creates_lists_and_uses_feedback_tokens(server: Hosted):
    run_id, _ = await run_in(server, "sdk-tokens")
    client = Client(api_url=server.url, api_key=server.key)

    def work() -> None:
        one = client.create_presigned_feedback_token(run_id, "a", expiration=timedelta(hours=1))
        more = client.create_presigned_feedback_tokens(run_id, ["b", "c"])
        listed = {token.id: token.url for token in client.list_presigned_feedback_tokens(run_id)}
        assert listed == {token.id: token.url for token in (one, *more)}
        client.create_feedback_from_token(one.id, score=1, value="good", comment="c")
        assert [(f.key, f.value, f.comment) for f in client.list_feedback(run_ids=[run_id])] == [("a", "good", "c")]

    await asyncio.to_thread(work)
