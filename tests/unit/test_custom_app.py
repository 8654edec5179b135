"""The project's application together with our routes, in one process: authentication, middleware and their order."""

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from langgraph_sdk import Auth

from portside.agent.access.authentication import OPEN, AccessPolicy, CustomAuthentication
from portside.agent.access.service import Access
from portside.agent.config import AgentConfig, load_config
from portside.agent.custom.cache import SDK_CACHE
from portside.agent.custom.loopback import LOOPBACK, let_sdk_find_server, send_as_current_user
from portside.agent.custom.web_app import CustomApp, running
from portside.executor.authentication import Authentication
from portside.executor.sdk_transport import ServerTransport
from portside.kernel.errors import UserMistake
from portside.kernel.http.error_responses import ErrorFormat
from portside.kernel.http.in_process import InProcessRequest
from portside.kernel.http.middleware import RequestMiddleware
from portside.kernel.http.routes import Api, BaseServices, Context, Routes, bind
from portside.kernel.http.websockets import SocketApi

WEB = """
from starlette.applications import Starlette
from starlette.authentication import requires
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route


class Look:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            seen.append(scope["user"].identity if "user" in scope else None)
        await self.app(scope, receive, send)


seen = []


async def me(request):
    sent = (await request.body()).decode()
    return JSONResponse({"me": request.user.display_name, "may": request.auth.scopes, "sent": sent})


async def free(request):
    return PlainTextResponse("free")


async def teapot(request):
    raise HTTPException(418, "short")


async def boom(request):
    raise RuntimeError("hunter2")


routes = [
    Route("/me", me, methods=["GET", "POST"]), Route("/free", free), Route("/teapot", teapot), Route("/boom", boom),
    Route("/hello", free, methods=["PUT"]), Mount("", PlainTextResponse("free")),
]
app = Starlette(routes=routes, middleware=[Middleware(Look)], debug=True)
"""

ours = Routes("ours")


@ours.get("/hello")
async def hello(ctx: Context) -> dict[str, str]:
    """Greet who asks."""
    return {"hello": ctx.actor.identity}


@ours.get("/ok", public=True)
async def ok(_ctx: Context) -> dict[str, bool]:
    """Answer."""
    return {"ok": True}


@ours.get("/", public=True)
async def root(_ctx: Context) -> dict[str, bool]:
    """Answer, where the project leaves the root to us."""
    return {"ours": True}


asked: list[str] = []


async def authenticate(authorization: str | None, body: Any = None) -> dict[str, Any]:
    asked.append(str(authorization))
    if authorization is None:
        raise Auth.exceptions.HTTPException(401)

    return {"identity": authorization, "display_name": authorization.title(), "permissions": ["read"]}


Joined = Callable[..., tuple[httpx2.AsyncClient, list[str | None]]]


@pytest.fixture
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., AgentConfig]:
    def write(code: str = WEB, **http: Any) -> AgentConfig:
        name = f"web_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(code)
        content = {"graphs": {"a": "./a.py:g"}, "http": {"app": f"./{name}.py:app", **http}}
        (tmp_path / "langgraph.json").write_text(json.dumps(content))
        return load_config(tmp_path / "langgraph.json")

    return write


@pytest.fixture
def join_app(project: Callable[..., AgentConfig]) -> Joined:
    """An application with our routes, behind what every request passes; and whom its middleware saw."""

    def join(protection: AccessPolicy | None = None, **http: Any) -> tuple[httpx2.AsyncClient, list[str | None]]:
        asked.clear()
        config = project(**http)
        custom = CustomApp(config, str(config.http.app))

        protected = (
            AccessPolicy(custom=CustomAuthentication(Authentication(authenticate)))
            if protection is None
            else protection
        )

        access = Access(None, None, protected)  # type: ignore[arg-type]  # nothing is looked up here
        api = SocketApi(
            Api(bind(ours, BaseServices(db=None)), access.guard), [], access.guard, draining=asyncio.Event()
        )

        custom.join(api, access)
        transport = httpx2.ASGITransport(RequestMiddleware(custom, ErrorFormat.TEXT))
        module = __import__(Path(str(config.http.app).split(":")[0]).stem)

        return httpx2.AsyncClient(transport=transport, base_url="http://x"), module.seen

    return join


async def test_by_default_only_our_routes_authenticate_after_middleware(join_app: Joined) -> None:
    http, seen = join_app()
    assert (await http.get("/hello")).status_code == 401
    assert (await http.get("/hello", headers={"authorization": "ada"})).json() == {"hello": "ada"}
    assert (await http.get("/free")).text == "free"
    assert (await http.get("/ok")).json() == {"ok": True}
    assert seen == [None, None, None, None]
    assert asked == ["None", "ada"]


async def test_project_routes_can_require_authentication(join_app: Joined) -> None:
    http, seen = join_app(enable_custom_route_auth=True)
    for path in ("/me", "/free", "/", "/below/the/root", "/ok/"):
        refused = await http.get(path)
        assert (refused.status_code, list(refused.json())) == (401, ["detail"])

    response = await http.post("/me", headers={"authorization": "ada"}, content="what was sent")
    assert response.json() == {"me": "Ada", "may": ["read"], "sent": "what was sent"}
    assert (await http.get("/ok")).status_code == 200
    assert (await http.get("/hello", headers={"authorization": "ada"})).json() == {"hello": "ada"}
    assert set(seen) == {None}


async def test_authentication_can_come_before_the_middleware(join_app: Joined) -> None:
    http, seen = join_app(middleware_order="auth_first")
    assert (await http.get("/hello")).status_code == 401
    assert seen == []
    assert (await http.get("/hello", headers={"authorization": "ada"})).json() == {"hello": "ada"}
    assert seen == ["ada"]
    assert asked == ["None", "ada"]
    assert (await http.get("/free")).text == "free"

    assert (await http.get("/ok")).status_code == 200


async def test_overridden_route_is_not_authenticated_by_default(join_app: Joined) -> None:
    http, _seen = join_app(middleware_order="auth_first", enable_custom_route_auth=True)
    assert (await http.put("/hello")).status_code == 401
    assert (await http.put("/hello", headers={"authorization": "ada"})).text == "free"
    assert (await http.get("/hello")).status_code == 401


async def test_catch_all_root_is_authenticated_before_middleware(join_app: Joined) -> None:
    http, seen = join_app(middleware_order="auth_first", enable_custom_route_auth=True)
    assert [(await http.request(method, "/")).status_code for method in ("GET", "HEAD", "POST")] == [401] * 3
    assert seen == []
    assert (await http.get("/", headers={"authorization": "ada"})).text == "free"


async def test_without_authentication_requests_have_no_user(join_app: Joined) -> None:
    http, _seen = join_app(OPEN, enable_custom_route_auth=True)
    assert (await http.get("/me")).json() == {"me": "", "may": [], "sent": ""}


async def test_project_errors_have_our_form_and_hide_details(join_app: Joined) -> None:
    http, _seen = join_app()
    boom = await http.get("/boom")
    assert (boom.status_code, list(boom.json())) == (500, ["detail"])
    assert "hunter2" not in boom.text
    assert (await http.get("/teapot")).json() == {"detail": "short"}


async def test_catch_all_project_app_serves_the_root(join_app: Joined) -> None:
    http, _seen = join_app()
    assert (await http.get("/")).text == "free"
    assert (await http.get("/ok/")).text == "free"


LIFE = """
from contextlib import asynccontextmanager
from starlette.applications import Starlette

@asynccontextmanager
async def lifespan(app):
    {before}
    yield {{"key_filter": "full"}}
    {after}

app = Starlette(lifespan=lifespan)
"""


@asynccontextmanager
async def run_app(config: AgentConfig) -> AsyncIterator[CustomApp]:
    custom = CustomApp(config, str(config.http.app))
    async with running(custom, custom):
        yield custom


async def test_failed_lifespan_startup_names_the_line(project: Callable[..., AgentConfig]) -> None:
    config = project(LIFE.format(before="raise ValueError('no warehouse')", after=""))
    with pytest.raises(
        UserMistake, match=r"http\.app \(.*\) does not load: ValueError: no warehouse \(web_.*line 7: raise"
    ):
        async with run_app(config):
            pass


async def test_failed_lifespan_shutdown_is_only_logged(project: Callable[..., AgentConfig]) -> None:
    async with run_app(project(LIFE.format(before="pass", after="raise ValueError('late')"))):
        head, exchange = await LOOPBACK.send(InProcessRequest("GET", "/nowhere", b"/nowhere", b"", [], b""))
        assert head.status == 404
        await exchange.close()


def test_export_that_is_no_application_is_refused(project: Callable[..., AgentConfig]) -> None:
    config = project("app = {}")
    with pytest.raises(UserMistake, match="is of type dict; export a Starlette or FastAPI app"):
        CustomApp(config, str(config.http.app))


def test_sdk_finds_only_the_substitute_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("__LANGGRAPH_DEFER_LOOPBACK_TRANSPORT", "true")
    let_sdk_find_server(SDK_CACHE)
    try:
        assert importlib.util.find_spec("langgraph_api") is not None
        assert importlib.import_module("langgraph_api.server").app is LOOPBACK
        assert isinstance(importlib.import_module("langgraph_api").asgi_transport.ASGITransport(), ServerTransport)
        assert not hasattr(importlib.import_module("langgraph_api.asgi_transport"), "other")
        assert importlib.import_module("langgraph_api.cache").cache_get == SDK_CACHE.cache_get

        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("langgraph_api.auth")

        assert "__LANGGRAPH_DEFER_LOOPBACK_TRANSPORT" not in os.environ
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "langgraph_api"]:
            del sys.modules[name]


async def test_loopback_client_without_server_raises_connect_error() -> None:
    async with httpx.AsyncClient(transport=ServerTransport(send_as_current_user), base_url="http://api") as client:
        with pytest.raises(httpx.ConnectError, match="does not answer yet"):
            await client.get("/ok")
