"""Authentication and authorization without a server: which handler decides, who a caller is, what does not start."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import Auth
from starlette.requests import Request

from portside.agent.access.crowding import OpenAnswers, TooManyStreams
from portside.agent.access.custom import CustomAuthentication
from portside.agent.access.errors import HandlerFailed, Refused
from portside.agent.access.handlers import Handlers
from portside.agent.access.loading import Protection, load_protection, refuse_open_address
from portside.agent.access.memory import Remembered, digest_of
from portside.agent.access.service import Access
from portside.agent.access.users import caller_from
from portside.agent.config import load_config
from portside.agent.settings import AgentSettings
from portside.agent.types.access import INSIDE, AuthCache, Caller
from portside.kernel.errors import Forbidden, UserMistake
from portside.kernel.http.inside import Call
from portside.kernel.http.routes import Context, Route

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


async def decided(auth: Auth, event: str, caller: Caller = ADA, **value: Any) -> tuple[Any, dict[str, Any]]:
    resource, _, action = event.partition(".")
    return await Handlers(auth).decide(caller, resource, action, value), value


# Which handler decides


async def test_the_most_particular_handler_decides() -> None:
    auth = Auth()

    def says(name: str) -> Any:
        async def handler(ctx: Any, value: Any) -> Any:
            value["asked"] = name

        return handler

    assert Handlers(auth).find("threads", "read") is None
    auth.on(says("everything"))
    auth.on(actions="read")(says("every read"))
    auth.on.threads(says("threads"))
    auth.on.threads.read(says("threads.read"))
    asked = {event: (await decided(auth, event))[1]["asked"] for event in (
        "threads.read", "threads.update", "assistants.read", "assistants.create", "store.get",
    )}  # fmt: skip
    assert asked == {
        "threads.read": "threads.read", "threads.update": "threads", "assistants.read": "every read",
        "assistants.create": "everything", "store.get": "everything",
    }  # fmt: skip


async def test_answers_of_handlers() -> None:
    async def answers(answer: Any) -> Any:
        auth = Auth()

        @auth.on
        async def handler(ctx: Any, value: Any) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return (await decided(auth, "threads.read"))[0]

    assert await answers(None) is await answers(True) is None
    assert await answers({"owner": "ada"}) == {"equal": {"owner": "ada"}, "rest": []}
    for refusal in (False, AssertionError("inside")):
        with pytest.raises(Forbidden, match=r"^Forbidden$"):
            await answers(refusal)
    with pytest.raises(Refused, match="Gone") as refused:
        await answers(Auth.exceptions.HTTPException(status_code=410, detail="Gone"))
    assert refused.value.status == 410
    for failure in ("yes", 1, ["x"], ValueError("inside"), Auth.exceptions.HTTPException(status_code=200)):
        with pytest.raises(HandlerFailed) as failed:
            await answers(failure)
        assert "inside" not in str(failed.value)


# Who a caller is


def test_users_of_every_kind_become_one() -> None:
    class Thing:
        def __init__(self) -> None:
            self.identity, self.team, self._secret = "ada", "x", "s"

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


async def test_authentication_is_given_what_it_names() -> None:
    async def everything(request: Any, path: str, method: str, path_params: dict, query_params: dict, headers: dict,
                         authorization: str | None, other: int = 7) -> Any:  # fmt: skip
        assert (path, method, path_params, query_params, other) == ("/threads", "GET", {}, {"a": "1"}, 7)
        assert headers[b"x-note"] == b"n"
        return authorization

    def plainly(**given: Any) -> str:
        return str(given["authorization"])

    for handler in (everything, plainly):
        assert (await CustomAuthentication(handler)(request(authorization="ada", x_note="n"))).identity == "ada"
    with pytest.raises(UserMistake, match="tenant"):
        CustomAuthentication(lambda tenant: tenant)


async def test_what_is_remembered_is_asked_for_once() -> None:
    asked: list[str] = []

    async def handler(authorization: str | None) -> str:
        asked.append(str(authorization))
        return str(authorization)

    remembering = CustomAuthentication(handler, AuthCache(max_size=1))
    for token in ("ada", "ada", "bob", "bob", "ada"):
        assert (await remembering(request(authorization=token))).identity == token
    assert asked == ["ada", "bob", "ada"]
    await remembering(request())
    await remembering(request())
    assert asked[3:] == ["None", "None"]
    assert digest_of(["a", None]) != digest_of([None, "a"]) != digest_of(["a", ""])


def test_memory_ends() -> None:
    memory = Remembered[int](ttl_s=0, most=1)
    memory.put(b"a", 1)
    assert memory.get(b"a") is None


# What does not start


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_module", "no_such_module"), ("auth = 1", "of type int"), ("def broken(:", "auth"),
        ("from langgraph_sdk import Auth\nauth = Auth()", "no @authenticate handler"), ("x = 1", "has no 'auth'"),
    ],
)  # fmt: skip
def test_authentication_that_does_not_load_stops_the_server(tmp_path: Path, code: str, said: str) -> None:
    config = project(tmp_path, {"path": "./auth.py:auth"}, code)
    with pytest.raises(UserMistake, match=said):
        load_protection(config, AgentSettings())


def test_contradictions_stop_the_server(tmp_path: Path) -> None:
    own, nothing = {"path": "./auth.py:auth"}, None
    for auth, settings in (
        ({**own, "disable": True}, AgentSettings()), (own, AgentSettings(auth_type="noop")),
        (nothing, AgentSettings(auth_type="custom")), (nothing, AgentSettings(auth_type="langsmith")),
    ):  # fmt: skip
        with pytest.raises(UserMistake):
            load_protection(project(tmp_path, auth), settings)
    with pytest.raises(UserMistake, match="paht"):
        project(tmp_path, {"paht": "./auth.py:auth"})


def test_who_asks_nobody_listens_to_this_machine_alone(tmp_path: Path) -> None:
    config = project(tmp_path, None)
    for host in ("0.0.0.0", "::", "192.0.2.1", "agents.example"):
        with pytest.raises(UserMistake, match="GRAPH_AUTH_TYPE=noop"):
            refuse_open_address(config, AgentSettings(host=host))
        refuse_open_address(config, AgentSettings(host=host, auth_type="noop"))
        refuse_open_address(config, AgentSettings(host=host, auth_endpoint="http://platform"))
        refuse_open_address(project(tmp_path, {"disable": True}), AgentSettings(host=host))
    for host in ("127.0.0.1", "::1", "localhost"):
        refuse_open_address(config, AgentSettings(host=host))


def test_a_platform_is_asked_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    asking = AgentSettings(auth_endpoint="http://platform")
    assert load_protection(project(tmp_path, None), AgentSettings()).is_open
    assert load_protection(project(tmp_path, None), asking).platform is not None
    assert load_protection(project(tmp_path, {"disable": True}), asking).is_open
    assert load_protection(project(tmp_path, None), AgentSettings(auth_endpoint="http://p", auth_type="noop")).is_open


# The examples of the SDK's documentation


async def test_the_basic_example_of_the_sdk_works_as_written() -> None:
    async def verify_token(token: str | None) -> dict[str, Any] | None:
        return {"id": token} if token else None

    [code] = [part.split("```")[0] for part in (Auth.__doc__ or "").split("```python")[1:] if "deny_all" in part]
    scope: dict[str, Any] = {"verify_token": verify_token, "Any": Any}
    exec(compile(textwrap.dedent(code), "example", "exec"), scope)
    auth: Auth = scope["my_auth"]
    authenticate = CustomAuthentication(auth._authenticate_handler)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="Unauthorized"):
        await authenticate(request())
    caller = await authenticate(request(authorization="ada"))
    assert (await decided(auth, "threads.create", caller))[1] == {"metadata": {"owner": "ada"}}
    for action in ("read", "search"):
        assert (await decided(auth, f"threads.{action}", caller))[0] == {"equal": {"owner": "ada"}, "rest": []}
    for namespace, scoped in (((), ("ada",)), (("x",), ("ada", "x")), (("ada", "x"), ("ada", "x"))):
        assert (await decided(auth, "store.get", caller, namespace=namespace))[1]["namespace"] == scoped
    for event in ("threads.delete", "threads.create_run", "assistants.read", "crons.create"):
        with pytest.raises(Forbidden):
            await decided(auth, event, caller)
    assert caller.user.permissions == []


async def test_studio_users_are_known_by_their_class() -> None:
    auth = Auth()

    @auth.on
    async def deny_all_except_studio(ctx: Auth.types.AuthContext, value: Any) -> bool:
        return isinstance(ctx.user, Auth.types.StudioUser)

    await decided(auth, "threads.read", caller_from(Auth.types.StudioUser("dev", is_authenticated=True)))
    with pytest.raises(Forbidden):
        await decided(auth, "threads.read")


async def test_without_authentication_only_this_machine_looks_inside() -> None:
    access = Access(None, None)  # type: ignore[arg-type]
    inside, ordinary = (Route("GET", "/x", print, "t", permission=wanted) for wanted in ("deployments:update", None))

    def ctx(client: tuple[str, int] | None) -> Context:
        return Context({"type": "http", "path": "/x", "headers": [], "client": client}, None, None, {})

    for address in ("127.0.0.1", "::1", "127.9.9.9"):
        assert (await access.guard(ctx((address, 1)), inside)).address == address
    for address in ("192.0.2.1", "10.0.0.1", "::ffff:192.0.2.1", "localhost.example", ""):
        assert await access.guard(ctx((address, 1)), ordinary)
        with pytest.raises(Forbidden, match="same machine"):
            await access.guard(ctx((address, 1)), inside)


async def test_a_run_asks_its_own_server_in_the_name_of_its_user_where_that_is_configured() -> None:
    async def authenticate() -> str:
        raise AssertionError("asked who calls from inside")

    def call(user: Any) -> Request:
        return Request(Call("GET", "/x", b"/x", b"", [], b"", user).scope())

    custom = CustomAuthentication(authenticate)
    judging = Access(None, None, Protection(custom, judges_inside=True))  # type: ignore[arg-type]
    ada = await judging.authenticate(
        call({"identity": "ada", "permissions": ["p"], "is_authenticated": True, "kind": "x"})
    )
    assert (ada.identity, ada.permissions, ada.is_inside, ada.user["kind"]) == ("ada", ("p",), False, "x")
    studio = await judging.authenticate(call({"identity": "lin", "kind": "StudioUser"}))
    assert isinstance(studio.user, Auth.types.StudioUser)
    for nobody in (None, {}, {"identity": "", "is_authenticated": True}):
        assert (await judging.authenticate(call(nobody))).is_inside
    free = Access(None, None, Protection(custom))  # type: ignore[arg-type]
    assert (await free.authenticate(call({"identity": "ada"}))).is_inside


def test_permissions_hold_for_what_they_name_and_all_that_is_like_it() -> None:
    for given in ("deployments:update", "deployments:*", "*"):
        assert Caller("ada", permissions=("runs:read", given)).may("deployments:update")
    for given in ("deployments:read", "runs:*", "deployments", "", "update"):
        assert not Caller("ada", permissions=(given,)).may("deployments:update")
    assert not Caller("ada").may("deployments:update")


async def test_open_answers_are_counted_while_they_are_open_and_their_callers_forgotten_then() -> None:
    answers = OpenAnswers(1)
    waiting, short = (Route("GET", "/x", print, "t", stays_open=stays) for stays in (True, False))

    def guarding(count: OpenAnswers, caller: Caller) -> Any:
        async def guard(_ctx: Context, _route: Route) -> Caller:
            return caller

        return count.guarded(guard)

    def ctx() -> Context:
        return Context({"type": "http", "path": "/x", "headers": []}, None, None, {})

    first = ctx()
    await guarding(answers, ADA)(first, waiting)
    await guarding(answers, ADA)(ctx(), short)
    await guarding(answers, Caller("bob"))(ctx(), waiting)
    for _ in range(2):
        with pytest.raises(TooManyStreams, match="MAX_STREAMS_PER_CALLER"):
            await guarding(answers, ADA)(ctx(), waiting)
    first.end()
    again = ctx()
    await guarding(answers, ADA)(again, waiting)
    again.end()
    assert list(answers._open) == [Caller("bob").counted_as]
    for count, caller in ((answers, INSIDE), (answers, Caller()), (OpenAnswers(0), ADA)):
        for _ in range(3):
            await guarding(count, caller)(ctx(), waiting)
