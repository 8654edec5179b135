"""Prompts with the stock client: pushed, pulled, tagged, liked, listed and deleted.

A commit follows the latest one or is refused, however many clients commit at once.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumpd
from langchain_core.prompts import ChatPromptTemplate
from langsmith import AsyncClient, Client
from langsmith.utils import LangSmithConflictError, LangSmithNotFoundError, LangSmithUserError

from portside.prompts.types import PromptNotFound
from tests.api.hosted import Hosted, hosted, until_a_statement_waits

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:.*is deprecated"),
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with hosted(platform_database) as running:
        yield running


def client_of(server: Hosted, base: str = "") -> Client:
    return Client(api_url=server.url + base, api_key=server.key)


def prompt(text: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_messages([("system", text), ("human", "{question}")])


@pytest.mark.parametrize("base", ["", "/api/v1", "/api"])
async def test_a_prompt_is_pushed_pulled_and_deleted(server: Hosted, base: str):
    client, name = client_of(server, base), f"life{base.replace('/', '-')}"

    def work() -> None:
        assert client.get_prompt(name) is None
        url = client.push_prompt(name, object=prompt("one"), description="d", tags=["a"], commit_description="first")
        assert url.split("/")[-2] == name
        with pytest.raises(LangSmithConflictError, match="Nothing to commit"):
            client.push_prompt(name, object=prompt("one"))
        client.push_prompt(name, object=prompt("two"), commit_tags=["prod", "x"])
        client.push_prompt(name, object=prompt("three"))
        commits = list(client.list_prompt_commits(name))
        assert [c.description for c in commits] == [None, None, "first"]
        assert [c.parent_commit_hash for c in commits] == [commits[1].commit_hash, commits[2].commit_hash, None]
        texts = {
            version: client.pull_prompt(name + version, skip_cache=True).messages[0].prompt.template
            for version in ("", ":latest", ":prod", f":{commits[2].commit_hash}", f":{commits[1].commit_hash[:8]}")
        }
        assert list(texts.values()) == ["three", "three", "two", "one", "two"]
        client.push_prompt(name, object=prompt("four"), commit_tags="prod")
        assert client.pull_prompt(f"{name}:prod", skip_cache=True).messages[0].prompt.template == "four"
        shown = client.get_prompt(name)
        assert (shown.num_commits, shown.tags, shown.description, shown.is_public) == (4, ["a"], "d", False)
        assert (shown.num_downloads, shown.full_name) == (6, f"{server.actor.tenant_handle}/{name}")
        with pytest.raises(LangSmithNotFoundError):
            client.pull_prompt(f"{name}:nothing", skip_cache=True)
        assert client.like_prompt(name) == client.like_prompt(name) == {"likes": 1}
        assert (client.get_prompt(name).num_likes, client.get_prompt(name).liked_by_auth_user) == (1, True)
        assert client.unlike_prompt(name) == {"likes": 0}
        client.update_prompt(name, readme="# read", is_archived=True)
        assert name not in {p.repo_handle for p in client.list_prompts().repos}
        assert name in {p.repo_handle for p in client.list_prompts(is_archived=True).repos}
        client.delete_prompt(f"{server.actor.tenant_handle}/{name}")
        assert client.get_prompt(name) is None

    await asyncio.to_thread(work)


async def test_the_asynchronous_sdk_manages_prompts(server: Hosted):
    async with AsyncClient(api_url=server.url, api_key=server.key) as client:
        await client.push_prompt("waiting", object=prompt("one"))
        pulled = await client.pull_prompt("waiting", skip_cache=True)
        assert pulled.messages[0].prompt.template == "one"
        assert [c.repo async for c in client.list_prompt_commits("waiting")] == ["waiting"]
        assert "waiting" in {p.repo_handle for p in (await client.list_prompts()).repos}
        await client.delete_prompt("waiting")


async def test_the_model_is_included_only_on_request(server: Hosted):
    client = client_of(server)
    manifest = dumpd(prompt("with a model") | FakeListChatModel(responses=["x"]))

    def work() -> None:
        client.push_prompt("modelled", object=manifest)
        assert isinstance(client.pull_prompt("modelled", skip_cache=True), ChatPromptTemplate)
        assert client.pull_prompt_commit("modelled", include_model=True, skip_cache=True).manifest == manifest

    await asyncio.to_thread(work)


async def test_commits_require_the_latest_parent(server: Hosted):
    http = server.client
    made = (await http.post("/repos", json={"repo_handle": "chain"})).json()["repo"]
    address = f"/commits/{made['owner']}/chain"

    async def commit(parent: str | None, text: Any) -> httpx2.Response:
        return await http.post(address, json={"parent_commit": parent, "manifest": {"text": text}})

    assert (await commit("0" * 64, 1)).json() == {
        "detail": "The parent commit is not the latest one; pull the latest, and commit on top of it.",
        "error": "The parent commit is not the latest one",
    }
    first = (await commit(None, 1)).json()["commit"]
    assert (len(first["commit_hash"]), first["parent_id"]) == (64, None)
    assert (await commit(None, 2)).status_code == 409
    responses = await asyncio.gather(*(commit(first["commit_hash"], n) for n in range(2, 8)))
    assert sorted(response.status_code for response in responses) == [200, 409, 409, 409, 409, 409]
    (second,) = [response.json()["commit"] for response in responses if response.status_code == 200]
    assert second["parent_commit_hash"] == first["commit_hash"]
    assert (await commit(second["commit_hash"][:8], "x")).status_code == 200
    page = (await http.get(f"{address}/?limit=2&offset=2")).json()
    assert (page["total"], [c["id"] for c in page["commits"]]) == (3, [first["id"]])
    tags = f"/repos/{made['owner']}/chain/tags"
    assert (await http.post(tags, json={"tag_name": "t", "commit_id": first["id"]})).status_code == 200
    moved = await http.patch(f"{tags}/t", json={"commit_id": second["id"]})
    assert (moved.json()["commit_hash"], len((await http.get(tags)).json())) == (second["commit_hash"], 1)
    assert (await http.post(tags, json={"tag_name": "latest", "commit_id": first["id"]})).status_code == 422
    assert (await http.post(tags, json={"tag_name": "u", "commit_id": str(uuid4())})).status_code == 404
    assert (await http.delete(f"{tags}/t")).status_code == 204
    assert (await http.get(f"{tags}/t")).status_code == 404


async def test_prompts_are_listed_sorted_and_searched(server: Hosted):
    client = client_of(server)

    def work() -> None:
        for handle, words in (("sort-alpha", "Cats and dogs"), ("sort-beta", "birds"), ("sort-gamma", "more cats")):
            client.create_prompt(handle, description=words, tags=["sorting"])
        client.like_prompt("sort-beta")
        found = client.list_prompts(query="cat").repos
        assert {p.repo_handle for p in found} == {"sort-alpha", "sort-gamma"}
        assert {p.repo_handle for p in client.list_prompts(query="sort-b").repos} == {"sort-beta"}
        assert client.list_prompts(query="sort", sort_field="num_likes").repos[0].repo_handle == "sort-beta"
        page = client.list_prompts(query="sort", sort_direction="asc", limit=2, offset=1)
        assert (page.total, [p.repo_handle for p in page.repos]) == (3, ["sort-beta", "sort-gamma"])
        assert client.list_prompts(query="sort", offset=50).total == 3
        with pytest.raises(LangSmithConflictError):
            client.create_prompt("sort-alpha")

    await asyncio.to_thread(work)
    for body, field in (
        ({"repo_handle": "No Name"}, "repo_handle"),
        ({"repo_handle": "x", "repo_type": "agent"}, "repo_type"),
        ({}, "repo_handle"),
    ):
        response = await server.client.post("/repos/", json=body)
        assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, ["body", field])
    assert (await server.client.get("/repos/-/nothing")).json()["error"] == "Prompt not found"


async def test_another_workspace_can_only_read_public_prompts(server: Hosted):
    client = client_of(server)

    def work() -> None:
        client.push_prompt("private", object=prompt("p"))
        client.push_prompt("public", object=prompt("p"), is_public=True)

    await asyncio.to_thread(work)
    ours, key = server.actor.tenant_handle, await server.new_key(workspace_id=await server.new_workspace("Readers"))
    async with httpx2.AsyncClient(base_url=server.url, headers={"x-api-key": key}) as other:
        assert (await other.get("/settings")).json()["tenant_handle"] == "readers"
        assert (await other.get("/repos")).json() == {"repos": [], "total": 0}
        assert (await other.get(f"/commits/{ours}/public/latest")).status_code == 200
        for method, path, body in (
            ("GET", f"/repos/{ours}/private", None),
            ("GET", f"/commits/{ours}/private/latest", None),
            ("GET", f"/commits/{ours}/private/", None),
            ("DELETE", f"/repos/{ours}/private", None),
            ("POST", f"/likes/{ours}/private", {"like": True}),
            ("GET", "/repos/-/public", None),
        ):
            assert (await other.request(method, path, json=body)).status_code == 404, path
        for method, path, body in (
            ("DELETE", f"/repos/{ours}/public", None),
            ("PATCH", f"/repos/{ours}/public", {"readme": "theirs"}),
            ("POST", f"/commits/{ours}/public", {"manifest": {}, "parent_commit": "latest"}),
            ("POST", f"/repos/{ours}/public/tags", {"tag_name": "t", "commit_id": str(uuid4())}),
        ):
            response = await other.request(method, path, json=body)
            assert (response.status_code, response.json()["error"]) == (403, "The prompt belongs to another workspace")

    def pull() -> None:
        stranger = Client(api_url=server.url, api_key=key)
        pulled = stranger.pull_prompt(f"{ours}/public", skip_cache=True, dangerously_pull_public_prompt=True)
        assert pulled.messages[0].prompt.template == "p"
        with pytest.raises(LangSmithUserError):
            stranger.delete_prompt(f"{ours}/public")

    await asyncio.to_thread(pull)


@pytest.mark.parametrize("change", ["tag", "like", "commit"])
async def test_a_prompt_that_is_deleted_meanwhile_cannot_be_changed(server: Hosted, change: str):
    name = f"deleted-{change}"
    created = await server.client.post("/repos", json={"repo_handle": name, "is_public": False})
    assert created.status_code == 200, created.text
    first = await server.client.post(f"/commits/-/{name}", json={"manifest": {"a": 1}, "parent_commit": None})
    assert first.status_code == 200, first.text
    path, body = {
        "tag": (f"/repos/-/{name}/tags", {"tag_name": "prod", "commit_id": first.json()["commit"]["id"]}),
        "like": (f"/likes/-/{name}", {"like": True}),
        "commit": (f"/commits/-/{name}", {"manifest": {"a": 2}, "parent_commit": "latest"}),
    }[change]
    async with server.db.transaction() as tx:
        await tx.connection.execute("delete from prompt_repos where handle = $1", name)
        sent = asyncio.create_task(server.client.post(path, json=body))
        await until_a_statement_waits(server)
    response = await sent
    assert (response.status_code, response.json()["detail"]) == (404, PromptNotFound.__doc__)
