"""Integrations, push webhooks and polled branches, against a git host of the test, over HTTP.

A push counts once, and only with a valid signature. A git host's token is sent to that host only.
"""

import asyncio
import hashlib
import hmac
import json
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import httpx2
import pytest
import pytest_asyncio

import portside.alerts.channels  # noqa: F401 - its column is encrypted too
from portside.control import git_remotes, pushes
from portside.control.key_rotation import COLUMNS, reencrypt
from portside.control.polling import PolledBranches
from portside.control.pushes import ExpiredPushDeliveries, build_commit
from portside.control.scope import ScopeFactory
from portside.kernel.crypto import SecretBox
from portside.kernel.disk import DiskWatch
from portside.kernel.outbound import OutboundRules
from tests.api.control_server import control, create_body
from tests.api.git_host import TOKEN, git_host
from tests.repositories import Repository

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH = "/v1/integrations/git_hosting"
GONE = "0" * 40


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(platform_database):
    # The git host is in this process, and stands still whenever it does.
    rules = OutboundRules(allow_private=True, allow_loopback=True, timeout_s=600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(git_remotes, "TIMEOUT_S", 600)
        async with control(platform_database) as platform:
            platform.set_services(outbound_rules=rules)
            yield platform


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host(tmp_path_factory):
    async with git_host(tmp_path_factory.mktemp("host")) as host:
        yield host


async def add(platform, **over: Any) -> Any:
    body = {"name": f"host-{uuid4()}", "kind": "github", "token": TOKEN, **over}
    response = await platform.client.post(PATH, json=body)
    assert response.status_code == 201, response.text
    return response.json()


async def test_integrations_are_listed_without_their_tokens(platform, host) -> None:
    made = await add(platform, base_url=host.url + "/")
    assert (made["base_url"], made["has_token"], made["has_webhook"]) == (host.url, True, False)

    for path in (
        "/v1/integrations/git_hosting/install",
        "/v1/integrations/github/install",
        "/v1/integrations/forge/github/install",
    ):
        response = await platform.client.get(path)
        assert made in response.json()
        assert response.json()[0]["name"] == "git"
        assert TOKEN not in response.text

    # `git` is plain git, without an account.
    for taken in (made["name"], "git"):
        assert (await platform.client.post(PATH, json={"name": taken, "kind": "github"})).status_code == 409

    assert (await platform.client.delete(f"{PATH}/{made['id']}")).status_code == 204

    for request in ("DELETE", "PATCH"):
        gone = await platform.client.request(request, f"{PATH}/{made['id']}", json={"token": "x"})
        assert gone.status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "gitea"},
        {"kind": "svn"},
        {"base_url": "ftp://host"},
        {"base_url": "https://me:pw@host"},
        {"base_url": "https://host?x"},
        {"base_url": "https://host/a/../b"},
        {"base_url": "https://host/a b"},
        {"base_url": "host"},
        {"base_url": "https://ü⒈.com"},
        {"token": ""},
        {"token": "a b"},
        {"name": ""},
    ],
)
async def test_invalid_integrations_are_422(platform, body) -> None:
    response = await platform.client.post(PATH, json={"name": "bad", "kind": "github", **body})
    assert response.status_code == 422, response.text
    assert response.json()["detail"][0]["loc"][1] in {*body, "base_url"}


@pytest.mark.parametrize("kind", ["github", "gitlab", "gitea"])
async def test_repositories_are_listed_by_every_kind_of_host(platform, host, kind: str) -> None:
    host.listed = [f"team/repository-{number}" for number in range(130)]
    made = await add(platform, kind=kind, base_url=host.url)
    for start in ("git_hosting", "github", "forge/github"):
        response = await platform.client.get(f"/v1/integrations/{start}/{made['id']}/repos")
        assert response.status_code == 200, response.text
        assert len(response.json()) == 130

    last = response.json()[-1]
    assert last == {
        "host_integration_id": made["id"],
        "id": 129,
        "name": "repository-129",
        "owner": "team",
        "url": f"{host.url}/team/repository-129.git",
        "default_branch": None if kind == "gitlab" else "main",
    }


async def test_failures_of_the_git_host_are_reported(platform, host, monkeypatch) -> None:
    made = await add(platform, base_url=host.url, token="wrong")
    path = f"{PATH}/{made['id']}/repos"
    refused = await platform.client.get(path)
    assert (refused.status_code, "401" in refused.json()["detail"]) == (400, True)
    assert (await platform.client.patch(f"{PATH}/{made['id']}", json={"token": TOKEN})).status_code == 200
    assert (await platform.client.get(path)).status_code == 200
    monkeypatch.setattr(host, "status", 403)
    assert (await platform.client.get(path)).status_code == 400
    monkeypatch.setattr(host, "status", 500)

    assert (await platform.client.get(path)).status_code == 503
    usual_rules = platform.services.outbound_rules
    try:
        platform.set_services(outbound_rules=OutboundRules(allow_private=False))
        closed = await platform.client.get(path)
        assert (closed.status_code, "loopback network" in closed.json()["detail"]) == (400, True)

        platform.set_services(outbound_rules=OutboundRules(allow_loopback=True, max_bytes=1))
        assert (await platform.client.get(path)).status_code == 503
    finally:
        platform.set_services(outbound_rules=usual_rules)

    nowhere = await add(platform, base_url="http://127.0.0.1:9")
    assert (await platform.client.get(f"{PATH}/{nowhere['id']}/repos")).status_code == 503
    unknown = await add(platform, base_url=f"https://{'a' * 64}.example")
    wrong = await platform.client.get(f"{PATH}/{unknown['id']}/repos")
    assert (wrong.status_code, "retry-after" in wrong.headers) == (400, False)

    assert "is not the name of any host" in wrong.json()["detail"]


@pytest.mark.parametrize("stored", ["https://ü⒈.com", "https://[", "host", "http://host:99999"])
async def test_a_stored_address_that_is_invalid_by_now_is_reported(platform, host, poll, stored: str) -> None:
    made = await add(platform, base_url=host.url)
    followed = await follow(platform, made, f"{host.url}/team/stored")
    change = statement("update integrations set base_url = :base_url where id = :id")
    try:
        await platform.db.execute(change, base_url=stored, id=UUID(made["id"]))
        assert (await platform.client.get(f"{PATH}/{made['id']}/repos")).status_code in {400, 503}
        await poll()
        assert "cannot be polled" in (await platform.get(followed["id"]))["status_message"]
        config = {"integration_id": made["id"], "repo_url": f"{host.url}/team/other", "build_on_push": False}
        body = create_body(f"d-{uuid4()}", source_config=config)
        assert (await platform.client.post("/v2/deployments", json=body)).status_code in {400, 422}
    finally:
        await platform.db.execute(change, base_url=host.url, id=UUID(made["id"]))


async def follow(
    platform, integration: Any, repo_url: str, branch: str | None = "main", *, build_on_push: bool = True
) -> Any:
    """A deployment of a repository; its first revision is at its end, so that the next one starts at once."""
    config = {"integration_id": integration["id"], "repo_url": repo_url, "build_on_push": build_on_push}
    revision = {"repo_ref": branch, "graph_config_path": "langgraph.json"}
    made = await platform.create(f"d-{uuid4()}", source_config=config, source_revision_config=revision)
    await platform.listener.walk(made["id"], made["latest_revision_id"], "CREATE_FAILED")
    return made


async def test_a_token_goes_to_its_own_host_alone(platform, host) -> None:
    made = await add(platform, kind="gitlab", base_url=f"{host.url}/Git")
    good = f"{host.url}/Git/team/agent.git"
    deployment = await platform.create(f"d-{uuid4()}", source_config={"integration_id": made["id"], "repo_url": good})
    listener = await platform.listener.connect("credentials")
    found = {d["id"]: d for d in (await platform.listener.desired(listener))["deployments"]}[deployment["id"]]
    assert found["revisions"][0]["repo_credential"] == {"name": "oauth2", "value": TOKEN}
    assert TOKEN not in json.dumps(deployment)

    port = int(host.url.rsplit(":", 1)[1])
    for other in (
        "https://evil.example/team/agent.git",
        f"{host.url}/team/agent.git",
        f"{host.url}/Git/../agent.git",
        f"http://127.0.0.1:{port + 1}/Git/agent.git",
        "git@127.0.0.1:Git/agent.git",
    ):
        body = create_body("stolen", source_config={"integration_id": made["id"], "repo_url": other})
        response = await platform.client.post("/v2/deployments", json=body)
        assert (response.status_code, "repo_url" in response.json()["detail"]) == (400, True), other

    used = await platform.client.delete(f"{PATH}/{made['id']}")
    assert (used.status_code, deployment["name"] in used.json()["detail"]) == (409, True)


async def test_a_token_in_the_repo_url_is_refused_with_a_hint(platform) -> None:
    for url in ("https://me:secret@git.example.com/a.git", "https://secret@git.example.com/a.git"):
        response = await platform.client.post("/v2/deployments", json=create_body("x", source_config={"repo_url": url}))
        assert response.status_code == 400
        assert "source_config.integration_id" in response.json()["detail"]
        assert "secret" not in response.json()["detail"]


class Hook:
    """A webhook as the three kinds of hosts call it."""

    def __init__(self, client: httpx2.AsyncClient, kind: str, fields: Any) -> None:
        self.client = client
        self.kind = kind
        self.url = fields["url"]
        self.secret = fields["secret"]

    async def send(self, body: Any, event: str = "push", **over: str | bytes) -> httpx2.Response:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        digest = hmac.new(self.secret.encode(), raw, hashlib.sha256).hexdigest()
        headers = {
            "github": {
                "x-github-event": event,
                "x-github-delivery": str(uuid4()),
                "x-hub-signature-256": f"sha256={digest}",
            },
            "gitlab": {
                "x-gitlab-event": "Push Hook",
                "x-gitlab-event-uuid": str(uuid4()),
                "x-gitlab-token": self.secret,
            },
            "gitea": {"x-gitea-event": event, "x-gitea-delivery": str(uuid4()), "x-gitea-signature": digest},
        }[self.kind]

        headers = {"x-api-key": "", "content-type": "application/json", **headers, **over}
        return await self.client.post(self.url, content=raw, headers=headers)

    async def push(self, url: str, commit: str, branch: str = "main", **over: Any) -> list[str]:
        """Return the revisions that a push made."""
        names = {"git_http_url": url} if self.kind == "gitlab" else {"clone_url": url, "ssh_url": "git@other:x.git"}
        where = "project" if self.kind == "gitlab" else "repository"
        response = await self.send(
            {"ref": f"refs/heads/{branch}", "before": "b" * 40, "after": commit, where: names, **over}
        )
        assert response.status_code == 200, response.text

        return response.json()["revision_ids"]


async def create_hook(platform, integration: Any) -> Hook:
    response = await platform.client.post(f"{PATH}/{integration['id']}/webhook")
    assert response.status_code == 201, response.text
    return Hook(platform.client, integration["kind"], response.json())


@pytest.mark.parametrize("kind", ["github", "gitlab", "gitea"])
async def test_a_push_builds_its_commit_in_following_deployments(platform, host, kind: str) -> None:
    integration = await add(platform, kind=kind, base_url=host.url)
    hook = await create_hook(platform, integration)
    url = f"{host.url}/{kind}/agent"
    follows = await follow(platform, integration, f"{url}.git")

    for branch, pushed in (("other", True), ("main", False)):
        await follow(platform, integration, url, branch, build_on_push=pushed)

    await follow(platform, integration, f"{url}-other")
    await follow(platform, await add(platform, kind=kind, base_url=host.url), url)
    commit = "c" * 40
    (revision_id,) = await hook.push(url, commit)
    newest = (await platform.revisions(follows["id"]))[0]
    assert newest["id"] == revision_id
    assert newest["source_revision_config"]["repo_commit_sha"] == commit

    assert newest["source_revision_config"]["repo_ref"] == "main"
    assert await hook.push(url, commit) == [], "already have this commit"
    assert await hook.push(url, "d" * 40, deleted=True) == []
    assert await hook.push(url, GONE) == await hook.push(url, "0" * 64) == []
    assert await hook.push(url, "d" * 40, before=GONE) == []
    assert await hook.push(url, "d" * 40, created=True) == []


@pytest.mark.parametrize("kind", ["github", "gitlab", "gitea"])
async def test_a_deployment_without_a_branch_follows_the_default_one(platform, host, kind: str) -> None:
    integration = await add(platform, kind=kind, base_url=host.url)
    hook = await create_hook(platform, integration)
    url = f"{host.url}/{kind}/default"
    follows = await follow(platform, integration, url, None)
    named = {"git_http_url" if kind == "gitlab" else "clone_url": url, "default_branch": "trunk"}
    fields = {"project" if kind == "gitlab" else "repository": named}
    assert await hook.push(url, "c" * 40, "main", **fields) == []

    assert await hook.push(url, "c" * 40, "trunk") == [], "the host does not say that this is the default branch"
    (revision_id,) = await hook.push(url, "c" * 40, "trunk", **fields)
    newest = (await platform.revisions(follows["id"]))[0]
    assert newest["id"] == revision_id
    content = newest["source_revision_config"]
    assert (content["repo_commit_sha"], content["repo_ref"]) == ("c" * 40, None)


async def test_a_delivery_counts_once(platform, host) -> None:
    integration = await add(platform, base_url=host.url)
    hook = await create_hook(platform, integration)
    url = f"{host.url}/team/once"
    deployment = await follow(platform, integration, url)
    event = {"ref": "refs/heads/main", "before": "b" * 40, "after": "e" * 40, "repository": {"clone_url": url}}
    first = await hook.send(event)
    assert len(first.json()["revision_ids"]) == 1

    await platform.listener.walk(deployment["id"], first.json()["revision_ids"][0], "CREATE_FAILED")
    # Somebody may have captured it, and can send it with another id, which is not signed.
    later = await hook.send({**event, "before": "e" * 40, "after": "f" * 40})
    assert len(later.json()["revision_ids"]) == 1
    again = await hook.send(event)
    assert again.json() == {"revision_ids": [], "ignored": "this delivery was already handled"}
    for days, kept in ((399, 2), (401, 0)):
        await platform.db.execute(
            statement("update push_deliveries set received_at = now() - make_interval(days => :days)"), days=days
        )
        await ExpiredPushDeliveries(platform.db).activate()
        count = statement("select count(*) from push_deliveries where integration_id = :id")
        assert await platform.db.fetchval(count, id=UUID(integration["id"])) == kept


def statement(text: str) -> Any:
    from portside.kernel.db import Query

    return Query("of a test", text)


async def test_deployments_of_other_repositories_do_not_use_up_the_limit_of_a_push(platform, host, monkeypatch) -> None:
    monkeypatch.setattr(pushes, "MAX_DEPLOYMENTS", 2)
    integration = await add(platform, base_url=host.url)
    for name in ("other-1", "other-2", "shared", "shared", "shared"):
        await follow(platform, integration, f"{host.url}/team/{name}")

    hook = await create_hook(platform, integration)
    assert len(await hook.push(f"{host.url}/team/shared", "c" * 40)) == 2


async def test_a_commit_is_built_only_where_the_branch_is_still_followed(platform, host) -> None:
    """A deployment may change between the look at its branch and the build."""
    own = platform.services
    scopes = ScopeFactory(own.db, own.box, own.authenticator, own.changes)
    scope = scopes.for_workspace(platform.actor.organization_id, platform.actor.workspace_id)
    url = f"{host.url}/team/changed"
    integration = await add(platform, base_url=host.url)
    deployment = await follow(platform, integration, url)

    async def build(branch: str = "main", commit: str = "a" * 40) -> bool:
        async with scope.change() as tx:
            return await build_commit(tx, scope, UUID(deployment["id"]), branch=branch, commit=commit) is not None

    assert not await build("other")
    assert await build()
    assert not await build()
    await platform.patch(deployment["id"], source_config={"build_on_push": False})
    assert not await build(commit="b" * 40)
    await platform.patch(deployment["id"], source_config={"build_on_push": True})
    await platform.client.delete(f"/v2/deployments/{deployment['id']}")
    assert not await build(commit="b" * 40)
    assert await list_commits(platform, deployment) == [None, "a" * 40]
    assert await (await create_hook(platform, integration)).push(url, "c" * 40) == []


async def test_a_push_is_no_reason_to_build_a_repository_that_an_archive_replaced(platform, host) -> None:
    integration = await add(platform, base_url=host.url)
    url = f"{host.url}/team/replaced"
    deployment = await follow(platform, integration, url, None)
    await platform.db.execute(
        statement("update revisions set source = 'internal_source' where deployment_id = :id"),
        id=UUID(deployment["id"]),
    )
    event = {"clone_url": url, "default_branch": "main"}
    assert await (await create_hook(platform, integration)).push(url, "c" * 40, repository=event) == []


@pytest.mark.parametrize("kind", ["github", "gitlab", "gitea"])
async def test_unsigned_pushes_are_refused(platform, host, kind: str) -> None:
    integration = await add(platform, kind=kind, base_url=host.url)
    hook = await create_hook(platform, integration)
    event = {"ref": "refs/heads/main", "after": "a" * 40, "repository": {"clone_url": f"{host.url}/a"}}
    name = {"github": "x-hub-signature-256", "gitlab": "x-gitlab-token", "gitea": "x-gitea-signature"}[kind]
    for wrong in ("", "sha256=" + "0" * 64, "é".encode()):
        assert (await hook.send(event, **{name: wrong})).status_code == 401

    assert (await hook.send(event)).status_code == 200
    renewed = await create_hook(platform, integration)
    assert (await hook.send(event)).status_code == 401, "the old secret is void"
    assert (await renewed.send(event)).status_code == 200
    renewed.url = renewed.url.rsplit("/", 1)[0] + f"/{uuid4()}"
    assert (await renewed.send(event)).status_code == 401
    without = await add(platform, kind=kind, base_url=host.url)
    renewed.url = renewed.url.rsplit("/", 1)[0] + f"/{without['id']}"

    assert (await renewed.send(event)).status_code == 401


async def test_other_events_are_ignored_and_invalid_ones_are_422(platform, host) -> None:
    hook = await create_hook(platform, await add(platform, base_url=host.url))
    assert (await hook.send({"zen": "x", "hook_id": 1}, event="ping")).status_code == 200
    assert "not a push" in (await hook.send({}, event="issues")).json()["ignored"]
    tag = await hook.send({"ref": "refs/tags/v1", "after": "a" * 40})
    assert tag.json()["ignored"] == "only pushes to branches are built"

    for bad in (b"", b"{", b"[]", b"{}", b'{"ref": 1}', b'{"ref": "refs/heads/main", "after": "--upload-pack=x"}'):
        assert (await hook.send(bad)).status_code == 422, bad

    form = b"payload=%7B%22ref%22%3A%22refs%2Fheads%2Fmain%22%2C%22after%22%3A%22" + b"a" * 40 + b"%22%7D"
    sent = await hook.send(form, **{"content-type": "application/x-www-form-urlencoded"})
    assert sent.json()["ignored"].startswith("no deployment follows")
    assert (await hook.send(b"x" * (5 * 1024 * 1024 + 1))).status_code == 413


PERIOD_S = 3600.0
ALL_ARE_DUE = "update branch_polls set polled_at = now() - interval '1 day'"


@pytest.fixture
def chore(platform):
    own = platform.services
    services = ScopeFactory(own.db, own.box, own.authenticator, own.changes)
    return lambda: PolledBranches(services, PERIOD_S, platform.services.outbound_rules)


@pytest_asyncio.fixture(loop_scope="module")
async def poll(platform, chore):
    """Look at the branches that the test follows; those of earlier tests would be asked each time as well."""
    await platform.db.execute(statement("update deployments set build_on_push = false"))

    async def look() -> None:
        """Look at every branch, as if each were due."""
        await platform.db.execute(statement(ALL_ARE_DUE))
        while (await chore().activate()).again:
            pass

    return look


async def list_commits(platform, deployment: Any) -> list[str | None]:
    found = await platform.revisions(deployment["id"])
    return [revision["source_revision_config"]["repo_commit_sha"] for revision in reversed(found)]


async def test_a_branch_is_polled(platform, host, poll) -> None:
    repository = Repository(host.folder / "team" / "polled.git")
    first = repository.commit({"a": "1"})
    integration = await add(platform, base_url=host.url)
    url = f"{host.url}/team/polled.git"
    deployment = await follow(platform, integration, url)

    await poll()
    assert await list_commits(platform, deployment) == [None], "the first look only takes note"
    second = repository.commit({"a": "2"})
    await poll()
    await poll()
    assert await list_commits(platform, deployment) == [None, second]
    newest = (await platform.revisions(deployment["id"]))[0]

    await platform.listener.deploy(deployment["id"], newest["id"])
    older = (await platform.revisions(deployment["id"]))[0]["id"]
    third = repository.commit({"a": "3"})
    await poll()
    assert (await list_commits(platform, deployment))[-1] == third
    latest = (await platform.revisions(deployment["id"]))[0]

    await platform.listener.deploy(deployment["id"], latest["id"])
    back = await platform.client.post(f"/v2/deployments/{deployment['id']}/revisions/{older}/redeploy")
    assert back.status_code == 200, back.text
    await poll()
    assert (await list_commits(platform, deployment))[-1] == second, "a rollback stays until somebody pushes"
    assert first not in await list_commits(platform, deployment)


async def test_a_push_after_a_redeploy_is_built_though_the_branch_was_never_polled(platform, host, poll) -> None:
    repository = Repository(host.folder / "team" / "redeployed.git")
    first = repository.commit({"a": "1"})
    integration = await add(platform, base_url=host.url)
    deployment = await follow(platform, integration, f"{host.url}/team/redeployed.git")
    path = f"/v2/deployments/{deployment['id']}"
    patched = await platform.client.patch(path, json={"source_revision_config": {"repo_ref": "main"}})
    revision_id = patched.json()["latest_revision_id"]

    await platform.listener.deploy(deployment["id"], revision_id, commit=first)
    again = await platform.client.post(f"{path}/revisions/{revision_id}/redeploy")
    assert again.status_code == 200, again.text
    second = repository.commit({"a": "2"})

    await poll()
    assert (await list_commits(platform, deployment))[-1] == second


async def test_the_default_branch_is_polled_without_a_ref(platform, host, poll) -> None:
    repository = Repository(host.folder / "team" / "headed.git")
    repository.commit({"a": "1"})
    integration = await add(platform, base_url=host.url)
    deployment = await follow(platform, integration, f"{host.url}/team/headed.git", None)

    await poll()
    assert await list_commits(platform, deployment) == [None], "the first look only takes note"
    second = repository.commit({"a": "2"})
    await poll()
    await poll()
    assert await list_commits(platform, deployment) == [None, second]


async def test_poll_failures_show_in_the_status_without_the_token(platform, host, poll) -> None:
    repository = Repository(host.folder / "team" / "refusing.git")
    integration = await add(platform, base_url=host.url, token="secret-and-wrong")
    deployment = await follow(platform, integration, f"{host.url}/team/refusing.git")
    await poll()

    message = (await platform.get(deployment["id"]))["status_message"]
    assert message.startswith("Its repository cannot be polled, so a push starts no revision: ")
    assert "Authentication failed" in message
    assert "secret-and-wrong" not in message
    repository.commit({"a": "1"})

    path = f"/v1/integrations/git_hosting/{integration['id']}"
    changed = await platform.client.patch(path, json={"token": TOKEN})
    assert changed.status_code == 200, changed.text
    await poll()
    assert (await platform.get(deployment["id"]))["status_message"] is None

    # Also where the branch has not moved since.
    await platform.db.execute(statement("update branch_polls set failure = 'down'"))
    await poll()
    assert (await platform.get(deployment["id"]))["status_message"] is None


async def test_a_branch_is_polled_once_per_period_by_concurrent_tasks(platform, host, poll, chore) -> None:
    integration = await add(platform, base_url=host.url)
    followed = 6
    for number in range(followed):
        await follow(platform, integration, f"{host.url}/team/once{number}")

    await poll()
    await platform.db.execute(statement(ALL_ARE_DUE))

    done = await asyncio.gather(*(chore().activate() for _ in range(4)))
    while any(status.again for status in done[-4:]):
        done += await asyncio.gather(*(chore().activate() for _ in range(4)))

    assert sum(status.did["polled"] for status in done) == followed
    before = len(host.asked)
    assert (await chore().activate()).did["polled"] == 0
    assert len(host.asked) == before


async def test_no_branch_is_polled_on_a_full_disk_or_for_a_deployment_that_is_deleted(platform, host, poll) -> None:
    deployment = await follow(platform, await add(platform, base_url=host.url), f"{host.url}/team/full")
    own = platform.services
    scopes = ScopeFactory(own.db, own.box, own.authenticator, own.changes)
    disk = SimpleNamespace(shortage="its disk is nearly full")
    full = PolledBranches(scopes, PERIOD_S, own.outbound_rules, cast("DiskWatch", disk))
    assert (await full.activate()).did == {}

    await platform.client.delete(f"/v2/deployments/{deployment['id']}")
    disk.shortage = None
    assert (await full.activate()).did == {"polled": 0, "started": 0}


async def test_branches_are_polled_after_the_clock_was_set_back(platform, host, poll, chore) -> None:
    await follow(platform, await add(platform, base_url=host.url), f"{host.url}/team/clock")
    await poll()
    await platform.db.execute(statement("update branch_polls set polled_at = now() + interval '4 hours'"))

    done = [await chore().activate()]
    while done[-1].again:
        done.append(await chore().activate())

    assert sum(status.did["polled"] for status in done) == 1


async def test_every_encrypted_column_is_reencrypted_with_a_new_key(platform, host) -> None:
    integration = await add(platform, base_url=host.url)
    hook = await create_hook(platform, integration)
    await follow(platform, integration, f"{host.url}/team/rotated")

    columns = await platform.db.fetch(
        statement(
            "select table_name, column_name from information_schema.columns"
            " where table_schema = 'public' and column_name like '%sealed'"
        )
    )

    assert {(row["table_name"], row["column_name"]) for row in columns} == set(COLUMNS)
    old = platform.services.box
    both = SecretBox(b"n" * 32, *old.keys)
    try:
        assert await reencrypt(platform.db, both) > 0
        assert await reencrypt(platform.db, both) == 0
        platform.set_services(box=SecretBox(b"n" * 32))
        assert (await platform.client.get("/v2/deployments", params={"limit": 100})).status_code == 200
        assert await hook.push(f"{host.url}/team/rotated", "a" * 40)
    finally:
        await reencrypt(platform.db, SecretBox(old.keys[0], b"n" * 32))
        platform.set_services(box=old)
