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
from langsmith.schemas import FileEntry, SkillEntry
from langsmith.utils import LangSmithConflictError, LangSmithNotFoundError, LangSmithUserError

from portside.identity.keys import Owner, create_key
from portside.identity.types import KeyRequest
from portside.prompts import directories
from portside.prompts.types import PromptNotFound
from tests.api.hosted import Hosted, open_hosted, until_a_statement_waits

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:.*is deprecated"),
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        yield running


def open_client(server: Hosted, base: str = "") -> Client:
    return Client(api_url=server.url + base, api_key=server.key)


def prompt(text: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_messages([("system", text), ("human", "{question}")])


@pytest.mark.parametrize("base", ["", "/api/v1", "/api"])
async def test_a_prompt_is_pushed_pulled_and_deleted(server: Hosted, base: str):
    client = open_client(server, base)
    name = f"life{base.replace('/', '-')}"

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
    client = open_client(server)
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
    client = open_client(server)

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
        ({"repo_handle": "x", "repo_type": "file"}, "repo_type"),
        ({}, "repo_handle"),
    ):
        response = await server.client.post("/repos/", json=body)
        assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, ["body", field])

    assert (await server.client.get("/repos/-/nothing")).json()["error"] == "Prompt not found"


async def test_a_user_likes_a_prompt_once_whatever_the_key(server: Hosted):
    actor = server.actor
    owner = Owner(actor.organization_id, actor.workspace_id, actor.user_id)
    second = {"x-api-key": (await create_key(server.db, owner, KeyRequest())).key}
    await server.client.post("/repos", json={"repo_handle": "liked"})

    async def like(headers: dict[str, str], *, is_liked: bool) -> int:
        response = await server.client.post("/likes/-/liked", json={"like": is_liked}, headers=headers)
        return int(response.json()["likes"])

    assert [await like(headers, is_liked=True) for headers in ({}, second)] == [1, 1]

    # A service key is nobody's key.
    third = {"x-api-key": await server.new_key()}
    assert await like(third, is_liked=True) == 2
    assert await like(second, is_liked=False) == 1
    assert await like(third, is_liked=False) == 0


async def test_another_workspace_can_only_read_public_prompts(server: Hosted):
    client = open_client(server)

    def work() -> None:
        client.push_prompt("private", object=prompt("p"))
        client.push_prompt("public", object=prompt("p"), is_public=True, commit_tags="prod")

    await asyncio.to_thread(work)
    ours = server.actor.tenant_handle
    tagged = (await server.client.get("/repos/-/public/tags/prod")).json()
    (hidden,) = (await server.client.get("/commits/-/private/")).json()["commits"]
    key = await server.new_key(workspace_id=await server.new_workspace("Readers"))
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
            ("PATCH", f"/repos/{ours}/public/tags/prod", {"commit_id": tagged["commit_id"]}),
            ("DELETE", f"/repos/{ours}/public/tags/prod", None),
        ):
            response = await other.request(method, path, json=body)
            assert (response.status_code, response.json()["error"]) == (403, "The prompt belongs to another workspace")

        # A commit of another prompt is none that a tag could lead to.
        await other.post("/repos", json={"repo_handle": "mine", "is_public": False})
        stolen = await other.post("/repos/-/mine/tags", json={"tag_name": "t", "commit_id": hidden["id"]})
        assert (stolen.status_code, stolen.json()["error"]) == (404, "Commit not found")
        assert (await other.get(f"/commits/-/mine/{hidden['commit_hash']}")).status_code == 404

    assert (await server.client.get("/repos/-/public/tags/prod")).json() == tagged

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


@pytest.mark.parametrize("base", ["", "/api/v1", "/api"])
async def test_files_of_agents_and_skills_are_pushed_and_pulled(server: Hosted, base: str):
    client = open_client(server, base)
    name = f"agent{base.replace('/', '-')}"
    skill = f"skill{base.replace('/', '-')}"

    def work() -> None:
        assert not client.agent_exists(name)
        with pytest.raises(LangSmithNotFoundError):
            client.pull_agent(name)

        client.push_skill(skill, files={"SKILL.md": FileEntry(content="search")}, tags=["web"])
        files = {
            "AGENTS.md": FileEntry(content="# one"),
            "notes/old.md": FileEntry(content="é\n"),
            "skills/search": SkillEntry(repo_handle=skill),
        }

        url = client.push_agent(name, files=files, description="answers")
        first = client.pull_agent(f"-/{name}")
        assert f"/context/{name}/{first.commit_hash[:8]}" in url
        assert (first.files["AGENTS.md"], first.files["notes/old.md"]) == (files["AGENTS.md"], files["notes/old.md"])
        link = first.files["skills/search"]
        assert (link.type, link.repo_handle) == ("skill", skill)
        assert link.commit_hash == client.pull_skill(skill).commit_hash

        # A commit names what changes, and null removes a file. The same files again are no new commit.
        for _ in range(2):
            client.push_agent(name, files={"AGENTS.md": FileEntry(content="# two"), "notes/old.md": None})

        second = client.pull_agent(name)
        assert (set(second.files), second.files["AGENTS.md"].content) == ({"AGENTS.md", "skills/search"}, "# two")
        assert client.pull_agent(name, version=first.commit_hash[:8]).files["AGENTS.md"].content == "# one"
        assert client.get_prompt(name).num_commits == 2

        with pytest.raises(LangSmithConflictError, match="not the latest"):
            client.push_agent(name, files={"x": FileEntry(content="x")}, parent_commit=first.commit_hash)

        client.push_agent(name, files={"x": FileEntry(content="x")}, parent_commit=second.commit_hash)

        assert name in {repo.repo_handle for repo in client.list_agents(query=name).repos}
        assert skill in {repo.repo_handle for repo in client.list_skills(query=skill).repos}
        assert not client.list_skills(query=name).repos
        assert not client.list_prompts(query=name, is_archived=None).repos

        client.delete_skill(skill)
        assert client.pull_agent(name).files["skills/search"].commit_hash is None
        client.delete_agent(name)
        assert not client.agent_exists(name)

    await asyncio.to_thread(work)


async def test_files_and_prompts_keep_apart(server: Hosted):
    client = open_client(server)

    def work() -> None:
        client.push_prompt("kept-prompt", object=prompt("one"))
        client.push_agent("kept-agent", files={"AGENTS.md": FileEntry(content="a")})
        with pytest.raises(LangSmithConflictError, match="holds a prompt"):
            client.push_agent("kept-prompt", files={"AGENTS.md": FileEntry(content="a")})

        with pytest.raises(LangSmithConflictError, match="holds the files"):
            client.push_prompt("kept-agent", object=prompt("one"))

        with pytest.raises(LangSmithNotFoundError):
            client.delete_agent("kept-prompt")

        with pytest.raises(LangSmithNotFoundError):
            client.pull_skill("kept-agent")

        with pytest.raises(LangSmithNotFoundError):
            client.pull_agent("kept-prompt")

    await asyncio.to_thread(work)
    ignored_filter = await server.client.get("/commits/-/kept-agent", params={"repo_type": "skill"})
    assert ignored_filter.status_code == 422


@pytest.mark.parametrize(
    ("path", "entry", "text"),
    [
        ("../AGENTS.md", {"type": "file", "content": ""}, "relative path"),
        ("/etc/passwd", {"type": "file", "content": ""}, "relative path"),
        ("a//b", None, "relative path"),
        ("a/./b", {"type": "file", "content": ""}, "relative path"),
        ("a\\..\\b", {"type": "file", "content": ""}, "relative path"),
        ("a\n", {"type": "file", "content": ""}, "relative path"),
        ("x" * 501, {"type": "file", "content": ""}, "relative path"),
        ("kept/below", {"type": "file", "content": ""}, "is a file or a link"),
        ("new", {"type": "file"}, "Field required"),
        ("new", {"type": "skill"}, "Field required"),
        ("new", {"type": "skill", "repo_handle": "missing"}, "there is no skill 'missing'"),
        ("new", {"type": "skill", "repo_handle": "refusals"}, "there is no skill 'refusals'"),
        ("new", {"type": "agent", "repo_handle": "refusals", "selector": {"type": "COMMIT"}}, "cannot be pinned"),
        ("new", {"type": "file", "content": "x" * 4_999_999}, "5000000 bytes together"),
    ],
)
async def test_a_file_that_cannot_be_kept_is_refused_by_name(server: Hosted, path: str, entry: Any, text: str):
    await server.client.post("/repos", json={"repo_handle": "refusals", "repo_type": "agent"})
    address = "/platform/hub/repos/-/refusals/directories"
    first = await server.client.post(f"{address}/commits", json={"files": {"kept": {"type": "file", "content": "k"}}})

    refused = await server.client.post(f"{address}/commits", json={"files": {path: entry}})
    assert (refused.status_code, text in refused.text) == (422, True), refused.text
    pulled = (await server.client.get(address)).json()
    assert (pulled["commit_id"], list(pulled["files"])) == (first.json()["commit"]["id"], ["kept"])


async def test_a_repository_holds_a_limited_number_of_files(server: Hosted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(directories, "MAX_ENTRIES", 2)
    await server.client.post("/repos", json={"repo_handle": "many-files", "repo_type": "agent"})
    address = "/platform/hub/repos/-/many-files/directories/commits"

    async def commit(*changes: tuple[str, Any]) -> tuple[int, bool]:
        response = await server.client.post(address, json={"files": dict(changes)})
        return response.status_code, "at most 2 files" in response.text

    text = {"type": "file", "content": ""}
    assert await commit(("a", text), ("b", text)) == (200, False)
    assert await commit(("c", text)) == (422, True)
    assert await commit(("a", None), ("c", text)) == (200, False)


async def test_another_workspace_reads_public_agents_and_follows_only_public_links(server: Hosted):
    skills = {name: {"repo_handle": name, "repo_type": "skill"} for name in ("open-skill", "closed-skill")}
    skills["open-skill"]["is_public"] = True

    for body in [*skills.values(), {"repo_handle": "open-agent", "repo_type": "agent", "is_public": True}]:
        (await server.client.post("/repos", json=body)).raise_for_status()

    hub = "/platform/hub/repos"
    text = {"type": "file", "content": "t"}
    for name in skills:
        address = f"{hub}/-/{name}/directories/commits"
        (await server.client.post(address, json={"files": {"SKILL.md": text}})).raise_for_status()

    links = {name: {"type": "skill", "repo_handle": name} for name in skills}
    address = f"{hub}/-/open-agent/directories"
    (await server.client.post(f"{address}/commits", json={"files": links})).raise_for_status()
    owner = (await server.client.get("/settings")).json()["tenant_handle"]

    other = {"X-Api-Key": await server.new_key(workspace_id=await server.new_workspace("Elsewhere"))}
    theirs = f"{hub}/{owner}/open-agent/directories"
    pulled = (await server.client.get(theirs, headers=other)).json()

    assert [sorted(entry) for entry in pulled["files"].values()] == [
        ["owner", "repo_handle", "type"],
        ["commit_hash", "commit_id", "owner", "repo_handle", "type"],
    ]

    private = await server.client.get(f"{hub}/{owner}/closed-skill/directories", headers=other)
    changes = [
        await server.client.post(f"{theirs}/commits", headers=other, json={"files": {}}),
        await server.client.delete(theirs, headers=other),
    ]

    assert (private.status_code, [change.status_code for change in changes]) == (404, [403, 403])
    reader = {"X-Api-Key": await server.new_key("prompts:read")}
    refused = [
        await server.client.post(f"{address}/commits", headers=reader, json={"files": {}}),
        await server.client.delete(address, headers=reader),
        await server.client.get(address, headers={"X-Api-Key": "wrong"}),
    ]

    assert [response.status_code for response in refused] == [403, 403, 401]
