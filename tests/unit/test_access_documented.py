"""What the public documentation of custom authentication shows works as it is written."""

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import Auth
from langgraph_sdk.auth import is_studio_user
from msgspec.structs import replace
from starlette.requests import Request

from portside.agent.access.authentication import CustomAuthentication, caller_from
from portside.agent.access.handler_values import (
    apply_changes,
    apply_run_changes,
    check_store_filter,
    to_handler_value,
    to_run_handler_value,
)
from portside.agent.config import load_config
from portside.agent.types.runs import Command, RunConfig, RunCreate
from portside.agent.types.threads import ThreadSearch
from portside.executor.access_filters import read_filter
from portside.executor.authentication import Authentication
from portside.executor.authorization import AuthorizationHandlers
from portside.executor.handler_calls import HandlerFailed
from portside.kernel.errors import Forbidden, Invalid


def request(*headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "method": "GET", "path": "/", "headers": list(headers), "query_string": b""})


@pytest.mark.parametrize("name", [b"x-api-key", "x-api-key", "X-Api-Key"])
async def test_headers_are_found_by_bytes_and_by_text(name: Any) -> None:
    async def authenticate(headers: dict) -> Auth.types.MinimalUserDict:
        key = headers.get(name)
        if not key or name not in headers or key != headers[name]:
            raise Auth.exceptions.HTTPException(status_code=401, detail="Invalid API key")

        return {"identity": key.decode() if isinstance(key, bytes) else key}

    asked = CustomAuthentication(Authentication(authenticate))
    assert (await asked(request((b"x-api-key", b"mine")))).identity == "mine"
    with pytest.raises(Exception, match="Invalid API key"):
        await asked(request((b"x-other", b"mine")))


async def test_headers_are_a_plain_mapping_of_bytes_otherwise() -> None:
    async def authenticate(headers: dict) -> str:
        assert dict(headers) == {b"a": b"1", b"b": b"2"}
        assert (headers.get("c"), headers.get("c", 7), headers.get(3), 3 in headers) == (None, 7, None, False)
        with pytest.raises(KeyError):
            headers["c"]

        return "ada"

    assert (
        await CustomAuthentication(Authentication(authenticate))(request((b"a", b"1"), (b"b", b"2")))
    ).identity == "ada"


async def test_studio_users_see_everything_with_an_empty_filter() -> None:
    auth = Auth()

    @auth.on
    async def add_owner(ctx: Auth.types.AuthContext, value: dict) -> dict:
        if is_studio_user(ctx.user):
            return {}

        filters = {"owner": ctx.user.identity}
        value.setdefault("metadata", {}).update(filters)
        return filters

    handlers = AuthorizationHandlers(auth)
    value = {"namespace": ("notes",)}
    studio = caller_from(Auth.types.StudioUser("dev", is_authenticated=True))
    for resource in ("threads", "store"):
        assert await handlers.decide(studio, resource, "search", value) is None

    ada = caller_from("ada")
    assert await handlers.decide(ada, "threads", "search", {}) == {"equal": {"owner": "ada"}, "rest": []}

    # Items have no metadata: what would hold for them is not known, and so nobody is let in.
    allowed = await handlers.decide(ada, "store", "search", value)
    assert allowed is not None
    with pytest.raises(HandlerFailed):
        check_store_filter(allowed, "search", value)


def test_a_wildcard_is_no_label_that_a_filter_of_the_store_could_find() -> None:
    """A user named `*` would otherwise see the items of every user."""

    def allow(user: str, action: str, *namespace: str) -> None:
        check_store_filter(
            read_filter({"namespace": {"$contains": user}}), action, {"namespace": namespace, "key": "k"}
        )

    for action in ("search", "list_namespaces"):
        allow("zoe", action, "*", "zoe")
        for namespace in (("*",), ("*", "notes")):
            with pytest.raises(Forbidden):
                allow("*", action, *namespace)

    for action in ("put", "get", "delete"):
        allow("*", action, "notes", "*")


async def test_a_store_without_a_filter_is_scoped_by_its_namespace() -> None:
    auth = Auth()

    @auth.on.store()
    async def authorize_store(ctx: Auth.types.AuthContext, value: Auth.types.on.store.value) -> None:
        namespace: tuple = value["namespace"]
        assert namespace[0] == ctx.user.identity, "Not authorized"

    handlers = AuthorizationHandlers(auth)
    assert await handlers.decide(caller_from("ada"), "store", "get", {"namespace": ("ada", "notes")}) is None
    with pytest.raises(Exception, match="Forbidden"):
        await handlers.decide(caller_from("bob"), "store", "get", {"namespace": ("ada", "notes")})


@pytest.mark.parametrize(("written", "expected"), [("true", True), ("false", False), (True, True)])
def test_flags_may_be_written_as_text(tmp_path: Path, written: Any, expected: Any) -> None:
    file = tmp_path / "langgraph.json"
    auth = {"path": "src/security/auth.py:auth", "disable_studio_auth": written}
    file.write_text(json.dumps({"graphs": {"agent": "./agent.py:graph"}, "auth": auth}))
    assert load_config(file).auth.disable_studio_auth is expected


def test_handler_changes_of_a_request_are_applied() -> None:
    asked = ThreadSearch(metadata={"a": 1}, limit=5, status="idle")
    names = ("metadata", "status", "limit")
    value = {name: to_handler_value(name, getattr(asked, name)) for name in names}
    assert apply_changes(asked, names, value) is asked

    changed = apply_changes(asked, names, {**value, "metadata": {}, "status": None, "offset": 3})
    assert (changed.metadata, changed.status, changed.limit, changed.offset) == ({}, None, 5, asked.offset)
    assert apply_changes(asked, names, {"limit": 7}) == replace(asked, limit=7)
    with pytest.raises(Invalid):
        apply_changes(asked, names, {**value, "limit": "many"})


def test_handler_changes_of_a_run_are_applied() -> None:
    asked = {
        "input": {"a": 1},
        "command": Command(resume=False),
        "config": RunConfig(tags=["t"]),
        "context": {"c": 1},
        "webhook": "https://example.com",
        "stream_mode": ["values"],
        "interrupt_before": "*",
        "interrupt_after": ["x"],
        "metadata": {"m": 1},
    }

    untouched = RunCreate(assistant_id="agent", **asked)
    apply_run_changes(untouched, to_run_handler_value(untouched, {}))
    assert untouched == RunCreate(assistant_id="agent", **asked)
    body = untouched
    value = to_run_handler_value(untouched, {})
    changed = {"webhook": None, "command": None, "stream_mode": "updates", "interrupt_before": None}

    value["kwargs"].update(changed)
    value["kwargs"]["config"]["tags"].clear()
    apply_run_changes(body, value)
    assert body == RunCreate(assistant_id="agent", **{**asked, **changed, "config": RunConfig(tags=[])})
    emptied = value | {"metadata": {}, "kwargs": value["kwargs"] | {"input": None, "context": {}}}
    apply_run_changes(body, emptied)
    assert (body.metadata, body.input, body.context) == (None, None, None)
    value["kwargs"]["webhook"] = 7

    with pytest.raises(Invalid):
        apply_run_changes(body, value)
