"""Authentication and authorization without a server: the handler, the caller, and refused configurations."""

import json
import textwrap
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest
from cachetools import TTLCache
from langgraph_sdk import Auth
from pydantic import BaseModel
from starlette.authentication import AuthCredentials, BaseUser
from starlette.requests import Request

from portside.agent.access.authentication import (
    AccessPolicy,
    CallRefused,
    CustomAuthentication,
    PlatformAuthentication,
    PlatformSilent,
    caller_from,
    digest_credentials,
    load_access_policy,
    refuse_open_address,
)
from portside.agent.access.service import Access
from portside.agent.access.stream_limit import StreamLimit, TooManyStreams
from portside.agent.config import load_config
from portside.agent.settings import AgentSettings
from portside.agent.streams.replay_budget import counted_caller
from portside.agent.types.access import IN_PROCESS, AuthCache, AuthConfig, Caller
from portside.executor.authentication import Authentication
from portside.executor.authorization import AuthorizationHandlers
from portside.executor.handler_calls import HandlerFailed, HandlerRefused
from portside.executor.user import NotAuthenticated, NoUser
from portside.kernel.caller_tokens import CallerClaims, TokenIssuer
from portside.kernel.errors import Forbidden, PortsideError, Unauthorized, UserMistake
from portside.kernel.http.in_process import InProcessRequest
from portside.kernel.http.routes import BaseServices, Context, Route

ADA = caller_from("ada")


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/threads", "query_string": b"a=1", "headers": raw})


def project(folder: Path, auth: dict[str, Any] | None, code: str = "") -> Any:
    (folder / "agent.py").write_text("graph = None\n")
    (folder / "auth.py").write_text(textwrap.dedent(code))
    content = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}, **({"auth": auth} if auth else {})}
    (folder / "langgraph.json").write_text(json.dumps(content))
    return load_config(folder / "langgraph.json")


async def decide(auth: Auth, event: str, caller: Caller = ADA, **value: Any) -> tuple[Any, dict[str, Any]]:
    resource, _, action = event.partition(".")
    return await AuthorizationHandlers(auth).decide(caller, resource, action, value), value


# Which handler decides


async def test_most_specific_handler_decides() -> None:
    auth = Auth()

    def says(name: str) -> Any:
        async def handler(ctx: Any, value: Any) -> Any:
            value["asked"] = name

        return handler

    assert AuthorizationHandlers(auth).find("threads", "read") is None
    auth.on(says("everything"))
    auth.on(actions="read")(says("every read"))
    auth.on.threads(says("threads"))
    auth.on.threads.read(says("threads.read"))
    auth.on.crons(says("crons"))

    asked = {
        event: (await decide(auth, event))[1]["asked"]
        for event in (
            "threads.read",
            "threads.update",
            "assistants.read",
            "assistants.create",
            "crons.read",
            "store.get",
        )
    }

    assert asked == {
        "threads.read": "threads.read",
        "threads.update": "threads",
        "assistants.read": "every read",
        "assistants.create": "everything",
        "crons.read": "crons",
        "store.get": "everything",
    }


async def test_handler_results_allow_deny_or_filter() -> None:
    async def answers(answer: Any) -> Any:
        auth = Auth()

        @auth.on
        async def handler(ctx: Any, value: Any) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return (await decide(auth, "threads.read"))[0]

    assert await answers(None) is await answers(True) is None
    assert await answers({"owner": "ada"}) == {"equal": {"owner": "ada"}, "rest": []}

    for refusal in (False, AssertionError("inside")):
        with pytest.raises(Forbidden, match=r"^Forbidden$"):
            await answers(refusal)

    with pytest.raises(HandlerRefused, match="Gone") as refused:
        await answers(Auth.exceptions.HTTPException(status_code=410, detail="Gone"))

    assert refused.value.status == 410

    for failure in ("yes", 1, ["x"], ValueError("inside"), Auth.exceptions.HTTPException(status_code=200)):
        with pytest.raises(HandlerFailed) as failed:
            await answers(failure)
        assert "inside" not in str(failed.value)


# Who a caller is


def test_every_kind_of_user_becomes_a_caller() -> None:
    class Thing:
        def __init__(self) -> None:
            self.identity = "ada"
            self.team = "x"
            self._secret = "s"

    for given in ("ada", {"identity": "ada"}, Thing(), Auth.types.StudioUser("ada", is_authenticated=True)):
        caller = caller_from(given)
        assert (caller.identity, caller.display_name, caller.user["identity"]) == ("ada", "ada", "ada")
        assert (caller.user.identity, caller.user.is_authenticated) == ("ada", True)
        assert "identity" in caller.user
        assert {"identity", "display_name", "is_authenticated", "permissions"} <= set(caller.user)

    assert caller_from(Thing()).user["team"] == caller_from(Thing()).user.team == "x"
    assert "_secret" not in dict(caller_from(Thing()).user)
    studio = caller_from(Auth.types.StudioUser("dev")).user
    assert isinstance(studio, Auth.types.StudioUser)
    assert dict(studio)["kind"] == "StudioUser"


class Slotted:
    """The least that the SDK's protocol `MinimalUser` asks for."""

    __slots__ = ()

    @property
    def identity(self) -> str:
        return "ada"


class OfStarlette(BaseUser):
    """A user of Starlette's own class, whose other properties raise NotImplementedError."""

    @property
    def identity(self) -> str:
        return "ada"


class Named(NamedTuple):
    identity: str
    team: str


class OfPydantic(BaseModel):
    identity: str = "ada"
    permissions: list[str] = ["own"]


@pytest.mark.parametrize(
    ("returned", "permissions", "of_the_user"),
    [
        ("ada", (), []),
        ({"identity": "ada"}, (), []),
        ({"identity": "ada", "permissions": ["read"]}, ("read",), ["read"]),
        (MappingProxyType({"identity": "ada", "permissions": ("read",)}), ("read",), ["read"]),
        (SimpleNamespace(identity="ada", permissions=None), (), []),
        (OfPydantic(), ("own",), ["own"]),
        (Slotted(), (), []),
        (OfStarlette(), (), []),
        (Named("ada", "x"), (), []),
        ((["read", "write"], {"identity": "ada", "display_name": None}), ("read", "write"), ["read", "write"]),
        ((["read"], OfPydantic()), ("read",), ["read"]),
        (([], {"identity": "ada", "permissions": ["own"]}), (), []),
        (("read", "ada"), ("read",), ["read"]),
        ((None, OfPydantic()), ("own",), ["own"]),
        ([["read"], "ada"], ("read",), ["read"]),
        ((AuthCredentials(["read"]), OfStarlette()), ("read",), ["read"]),
    ],
)
def test_authenticate_may_return_a_user_or_scopes_and_a_user(
    returned: Any, permissions: tuple[str, ...], of_the_user: list[str]
) -> None:
    caller = caller_from(returned)
    assert (caller.identity, caller.display_name, caller.permissions) == ("ada", "ada", permissions)
    assert caller.user["permissions"] == of_the_user
    assert caller.user.is_authenticated


def test_scopes_do_not_authenticate_an_unauthenticated_user() -> None:
    with pytest.raises(NotAuthenticated):
        caller_from((["read"], {"identity": "ada", "is_authenticated": False}))

    for returned in (("a", "b", "c"), (), (["read"], None), (["read"], (["read"], "ada"))):
        with pytest.raises(NoUser):
            caller_from(returned)


async def test_authenticate_handler_gets_the_arguments_it_names() -> None:
    async def everything(
        request: Any,
        path: str,
        method: str,
        path_params: dict,
        query_params: dict,
        headers: dict,
        authorization: str | None,
        other: int = 7,
    ) -> Any:
        assert (path, method, path_params, query_params, other) == ("/threads", "GET", {}, {"a": "1"}, 7)
        assert headers[b"x-note"] == b"n"
        return authorization

    def plainly(**given: Any) -> str:
        return str(given["authorization"])

    for handler in (everything, plainly):
        assert (
            await CustomAuthentication(Authentication(handler))(request(authorization="ada", x_note="n"))
        ).identity == "ada"

    with pytest.raises(UserMistake, match="tenant"):
        CustomAuthentication(Authentication(lambda tenant: tenant))


async def test_cached_caller_is_authenticated_once() -> None:
    asked: list[str] = []

    async def handler(authorization: str | None) -> str:
        asked.append(str(authorization))
        return str(authorization)

    remembering = CustomAuthentication(Authentication(handler), AuthCache(max_size=1))
    for token in ("ada", "ada", "bob", "bob", "ada"):
        assert (await remembering(request(authorization=token))).identity == token

    assert asked == ["ada", "bob", "ada"]
    await remembering(request())
    await remembering(request())
    assert asked[3:] == ["None", "None"]
    given = [["a", None], [None, "a"], ["a", ""], ["ab", "c"], ["a", "bc"], ["a-"], ["a", None, None]]
    assert len({digest_credentials(parts) for parts in given}) == len(given)


async def test_cached_caller_expires() -> None:
    calls: list[str] = []

    async def handler(authorization: str) -> str:
        calls.append(authorization)
        return authorization

    for cache in (AuthCache(ttl_seconds=0), AuthCache(max_size=0)):
        calls.clear()
        authentication = CustomAuthentication(Authentication(handler), cache)
        for _ in range(2):
            await authentication(request(authorization="ada"))

        assert calls == ["ada", "ada"]


# What does not start


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_module", "no_such_module"),
        ("auth = 1", "of type int"),
        ("def broken(:", "auth"),
        ("from langgraph_sdk import Auth\nauth = Auth()", "no @authenticate handler"),
        ("x = 1", "has no 'auth'"),
    ],
)
def test_unloadable_authentication_stops_the_server(tmp_path: Path, code: str, said: str) -> None:
    config = project(tmp_path, {"path": "./auth.py:auth"}, code)
    with pytest.raises(UserMistake, match=said):
        load_access_policy(config, AgentSettings())


def test_contradictory_auth_settings_stop_the_server(tmp_path: Path) -> None:
    own = {"path": "./auth.py:auth"}
    nothing = None
    for auth, settings in (
        ({**own, "disable": True}, AgentSettings()),
        (own, AgentSettings(auth_type="noop")),
        (nothing, AgentSettings(auth_type="custom")),
        (nothing, AgentSettings(auth_type="langsmith")),
    ):
        with pytest.raises(UserMistake):
            load_access_policy(project(tmp_path, auth), settings)

    with pytest.raises(UserMistake, match="paht"):
        project(tmp_path, {"paht": "./auth.py:auth"})


def test_server_without_authentication_listens_on_loopback_only(tmp_path: Path) -> None:
    config = project(tmp_path, None)
    for host in ("0.0.0.0", "::", "192.0.2.1", "agents.example"):
        with pytest.raises(UserMistake, match="GRAPH_AUTH_TYPE=noop"):
            refuse_open_address(config, AgentSettings(host=host))

        refuse_open_address(config, AgentSettings(host=host, auth_type="noop"))
        refuse_open_address(config, AgentSettings(host=host, auth_endpoint="http://platform"))
        refuse_open_address(project(tmp_path, {"disable": True}), AgentSettings(host=host))

        refuse_open_address(config, AgentSettings(host=host, tier="queue"))
        with pytest.raises(UserMistake):
            refuse_open_address(config, AgentSettings(host=host, tier="api"))

    for host in ("127.0.0.1", "::1", "localhost"):
        refuse_open_address(config, AgentSettings(host=host))


def test_platform_keys_are_used_unless_disabled(tmp_path: Path) -> None:
    asking = AgentSettings(auth_endpoint="http://platform")
    assert load_access_policy(project(tmp_path, None), AgentSettings()).is_open
    assert load_access_policy(project(tmp_path, None), asking).platform is not None
    assert load_access_policy(project(tmp_path, {"disable": True}), asking).is_open
    assert load_access_policy(
        project(tmp_path, None), AgentSettings(auth_endpoint="http://p", auth_type="noop")
    ).is_open


# The examples of the SDK's documentation


@pytest.mark.needs("langgraph-sdk", "0.3.0")
async def test_the_basic_example_of_the_sdk_works_as_written() -> None:
    async def verify_token(token: str | None) -> dict[str, Any] | None:
        return {"id": token} if token else None

    [code] = [part.split("```")[0] for part in (Auth.__doc__ or "").split("```python")[1:] if "deny_all" in part]
    scope: dict[str, Any] = {"verify_token": verify_token, "Any": Any}
    exec(compile(textwrap.dedent(code), "example", "exec"), scope)
    auth: Auth = scope["my_auth"]

    authenticate = CustomAuthentication(Authentication(auth._authenticate_handler))  # type: ignore[arg-type]
    with pytest.raises(HandlerRefused, match="Unauthorized"):
        await authenticate(request())

    caller = await authenticate(request(authorization="ada"))
    assert (await decide(auth, "threads.create", caller))[1] == {"metadata": {"owner": "ada"}}

    for action in ("read", "search"):
        assert (await decide(auth, f"threads.{action}", caller))[0] == {"equal": {"owner": "ada"}, "rest": []}

    for namespace, scoped in (((), ("ada",)), (("x",), ("ada", "x")), (("ada", "x"), ("ada", "x"))):
        assert (await decide(auth, "store.get", caller, namespace=namespace))[1]["namespace"] == scoped

    for event in ("threads.delete", "threads.create_run", "assistants.read", "crons.create"):
        with pytest.raises(Forbidden):
            await decide(auth, event, caller)

    assert caller.user.permissions == []


async def test_studio_users_are_instances_of_their_class() -> None:
    auth = Auth()

    @auth.on
    async def deny_all_except_studio(ctx: Auth.types.AuthContext, value: Any) -> bool:
        return isinstance(ctx.user, Auth.types.StudioUser)

    await decide(auth, "threads.read", caller_from(Auth.types.StudioUser("dev", is_authenticated=True)))
    with pytest.raises(Forbidden):
        await decide(auth, "threads.read")


async def test_without_authentication_permissions_need_the_same_machine() -> None:
    access = Access(None, None)  # type: ignore[arg-type]
    inside, ordinary = (Route("GET", "/x", print, "t", permission=wanted) for wanted in ("deployments:update", None))

    def ctx(client: tuple[str, int] | None) -> Context:
        return Context(
            {"type": "http", "path": "/x", "headers": [], "client": client}, None, None, BaseServices(db=None)
        )

    for address in ("127.0.0.1", "::1", "127.9.9.9"):
        assert (await access.guard(ctx((address, 1)), inside)).address == address

    for address in ("192.0.2.1", "10.0.0.1", "::ffff:192.0.2.1", "localhost.example", ""):
        assert await access.guard(ctx((address, 1)), ordinary)
        with pytest.raises(Forbidden, match="same machine"):
            await access.guard(ctx((address, 1)), inside)

    # A Unix socket, behind which a proxy may serve anybody; and the server itself.
    assert await access.guard(ctx(None), ordinary)
    with pytest.raises(Forbidden, match="same machine"):
        await access.guard(ctx(None), inside)

    itself = InProcessRequest("GET", "/x", b"/x", b"", [], b"").scope()
    assert await access.guard(Context(itself, None, None, BaseServices(db=None)), inside)


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (500, "", None),
        (503, "", None),
        (429, '{"detail": "Too many requests"}', None),
        (408, "", None),
        (425, "", None),
        (404, '{"detail": "Deployment ID x not found."}', Unauthorized),
        (404, "<html>", PlatformSilent),
        (401, "", Unauthorized),
        (403, "", Unauthorized),
        (403, '{"detail": "no", "error": "call_refused"}', CallRefused),
        (200, "<html>", PlatformSilent),
        (302, "", PlatformSilent),
        (400, "", PlatformSilent),
    ],
)
async def test_last_known_caller_is_accepted_only_if_the_platform_did_not_decide(
    status: int, body: str, outcome: type[PortsideError] | None
) -> None:
    answers = [(200, '{"tenant_id": "t", "user_id": "ada"}'), (status, body), (503, "")]

    def answer(_: httpx.Request) -> httpx.Response:
        code, content = answers.pop(0)
        kind = "application/json" if content.startswith("{") else "text/html"
        return httpx.Response(code, content=content, headers={"content-type": kind})

    keys = PlatformAuthentication("http://platform.test", "t")
    keys._client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    keys._accepted = TTLCache(1, 0)
    given = request(x_api_key="a key")
    caller = await keys(given)
    assert caller.identity == "ada"

    if outcome is None:
        assert await keys(given) == caller
        return

    with pytest.raises(PortsideError) as refused:
        await keys(given)

    assert type(refused.value) is outcome
    # A refusal is remembered also when the platform goes silent after it.
    keys._rejected = TTLCache(1, 0)

    if outcome is not PlatformSilent:
        with pytest.raises(PlatformSilent):
            await keys(given)


async def test_owner_of_a_key_is_of_the_workspace_of_the_agent() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"tenant_id": "t", "user_id": "ada"})

    for tenant, outcome in (("t", None), ("another", Unauthorized), (None, None)):
        keys = PlatformAuthentication("http://platform.test", tenant)
        keys._client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        if outcome is None:
            assert (await keys(request(x_api_key="a key"))).identity == "ada"
        else:
            with pytest.raises(outcome):
                await keys(request(x_api_key="a key"))


@pytest.mark.parametrize(
    ("config", "sent", "who"),
    [
        (AuthConfig(), {"authorization": "x"}, "own"),
        (AuthConfig(), {"x_api_key": "k"}, "own"),
        (AuthConfig(), {"x_api_key": "k", "x_auth_scheme": "langsmith"}, "studio"),
        (AuthConfig(), {"x_api_key": "k", "x_auth_scheme": "Langsmith"}, "own"),
        (AuthConfig(disable_studio_auth=True), {"x_api_key": "k", "x_auth_scheme": "langsmith"}, "own"),
        (AuthConfig(allow_langsmith_api_keys=True), {"x_api_key": "k"}, "platform"),
        (AuthConfig(allow_langsmith_api_keys=True), {"authorization": "x"}, "own"),
        (AuthConfig(allow_langsmith_api_keys=True), {"x_api_key": "k", "x_auth_scheme": "langsmith"}, "studio"),
    ],
)
async def test_the_projects_handler_decides_unless_the_platform_is_asked_for(
    config: AuthConfig, sent: dict[str, str], who: str
) -> None:
    async def as_own(_: Any) -> Caller:
        return Caller("own")

    class Platform:
        async def __call__(self, _: Any) -> Caller:
            return Caller("platform")

        async def studio(self, _: Any) -> Caller:
            return Caller("studio")

    both: Any = AccessPolicy(as_own, Platform(), config=config)  # type: ignore[arg-type]
    assert (await both.identify(request(**sent))).identity == who
    alone: Any = AccessPolicy(as_own, config=config)  # type: ignore[arg-type]
    assert (await alone.identify(request(**sent))).identity == "own"


async def test_unknown_ids_of_keys_ask_the_platform_once_a_second() -> None:
    asked: list[str] = []

    def answer(asking: httpx.Request) -> httpx.Response:
        asked.append(asking.url.path)
        return httpx.Response(200, json={"keys": []})

    keys = PlatformAuthentication("http://platform.test", None, "a deployment")
    keys._client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    for number in range(5):
        forged = TokenIssuer([bytes([number]) * 32]).sign(CallerClaims(aud="a deployment", sub="x", iat=0, exp=60))
        with pytest.raises(Unauthorized):
            await keys(request(x_api_key=forged))

        keys._tokens._ask_after += 3600  # the second does not pass meanwhile

    assert asked == ["/jwks.json"]


async def test_in_process_calls_run_as_the_user_if_configured() -> None:
    async def authenticate() -> str:
        raise AssertionError("asked who calls from inside")

    def call(user: Any) -> Request:
        return Request(InProcessRequest("GET", "/x", b"/x", b"", [], b"", user).scope())

    custom = CustomAuthentication(Authentication(authenticate))
    judging = Access(None, None, AccessPolicy(custom, calls_as_user=True))  # type: ignore[arg-type]
    ada = await judging.authenticate(
        call({"identity": "ada", "permissions": ["p"], "is_authenticated": True, "kind": "x"})
    )
    assert (ada.identity, ada.permissions, ada.is_in_process, ada.user["kind"]) == ("ada", ("p",), False, "x")
    studio = await judging.authenticate(call({"identity": "lin", "kind": "StudioUser"}))
    assert isinstance(studio.user, Auth.types.StudioUser)

    for nobody in (None, {}, {"identity": "", "is_authenticated": True}):
        assert (await judging.authenticate(call(nobody))).is_in_process

    free = Access(None, None, AccessPolicy(custom))  # type: ignore[arg-type]
    assert (await free.authenticate(call({"identity": "ada"}))).is_in_process


def test_permissions_match_resource_verb_and_wildcards() -> None:
    for given in ("deployments:update", "deployments:*", "*"):
        assert Caller("ada", permissions=("runs:read", given)).has_permission("deployments:update")

    for given in ("deployments:read", "runs:*", "deployments", "", "update"):
        assert not Caller("ada", permissions=(given,)).has_permission("deployments:update")

    assert not Caller("ada").has_permission("deployments:update")


async def test_stream_limit_counts_open_responses_of_each_caller() -> None:
    answers = StreamLimit(1)
    waiting, short = (Route("GET", "/x", print, "t", stays_open=stays) for stays in (True, False))

    def guarding(count: StreamLimit, caller: Caller) -> Any:
        async def guard(_ctx: Context, _route: Route) -> Caller:
            return caller

        return count.guarded(guard)

    def ctx() -> Context:
        return Context({"type": "http", "path": "/x", "headers": []}, None, None, BaseServices(db=None))

    first = ctx()
    await guarding(answers, ADA)(first, waiting)
    assert counted_caller.get() == ADA.limit_key, "its replays count against her as well"
    await guarding(answers, ADA)(ctx(), short)
    assert counted_caller.get() is None
    await guarding(answers, Caller("bob"))(ctx(), waiting)

    for _ in range(2):
        with pytest.raises(TooManyStreams, match="MAX_STREAMS_PER_CALLER"):
            await guarding(answers, ADA)(ctx(), waiting)

    first.finish()
    again = ctx()
    await guarding(answers, ADA)(again, waiting)
    again.finish()
    assert list(answers._open) == [Caller("bob").limit_key]

    for count, caller in ((answers, IN_PROCESS), (answers, Caller()), (StreamLimit(0), ADA)):
        for _ in range(3):
            await guarding(count, caller)(ctx(), waiting)
            assert counted_caller.get() == caller.limit_key
