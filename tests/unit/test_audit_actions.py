"""Every route that may change something is named for the audit log, with its action or with the reason against it."""

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from portside.audit.actions import NOT_RECORDED, RECORDED, find_action
from portside.audit.recording import Recorder, list_set_fields
from portside.audit.types import ActionName
from portside.kernel.db import Queries
from portside.kernel.http.routes import READING_METHODS, Route
from portside.platform.app import PACKAGES, ROUTES


def label(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_every_route_that_may_change_something_is_named() -> None:
    changing = [route for route in ROUTES if route.method not in READING_METHODS and not route.read_only]
    assert len(changing) > 100
    for route in changing:
        assert (label(route) in RECORDED) != (label(route) in NOT_RECORDED), label(route)


def test_routes_that_are_not_recorded_keep_their_handlers() -> None:
    """Ingest, runs and reads pay nothing: their handlers are those that would run without the log."""
    wrapped = Recorder(None).wrap_routes(ROUTES)  # type: ignore[arg-type]
    for before, after in zip(ROUTES, wrapped, strict=True):
        assert (before.handler is after.handler) == (label(before) not in RECORDED), label(before)


def test_no_name_is_left_of_a_route_that_is_gone() -> None:
    labels = {label(route) for route in ROUTES}
    assert not (RECORDED.keys() | NOT_RECORDED.keys()) - labels


def test_a_route_that_nobody_named_stops_the_platform() -> None:
    async def forgotten(_ctx: object) -> None:
        """Change something."""

    for method in ("POST", "PUT", "PATCH", "DELETE"):
        with pytest.raises(ValueError, match=r"/v9/forgotten may change something: name its action"):
            find_action(Route(method, "/v9/forgotten", forgotten, "tests"))

    assert find_action(Route("GET", "/v9/forgotten", forgotten, "tests")) is None
    assert find_action(Route("POST", "/v9/forgotten", forgotten, "tests", read_only=True)) is None


def test_actions_have_names_and_their_queries_exist() -> None:
    queries = {query.name: query for package in PACKAGES for query in Queries(package)}
    for where, action in RECORDED.items():
        assert msgspec.convert(action.name, ActionName).count(".") == 1, where
        for query in filter(None, (action.made_by, action.makes)):
            assert "id" in queries[query].parameters, where


class Inner(msgspec.Struct):
    depth: int | None = None
    color: str = "red"


class Secret(msgspec.Struct):
    name: str
    value: str


class Body(msgspec.Struct):
    title: str
    note: str | UnsetType = UNSET
    inner: Inner | None = None
    secrets: list[Secret] | None = None
    renamed: int = msgspec.field(default=0, name="otherName")


def test_entries_name_changed_fields_and_no_value() -> None:
    body = Body("hidden", inner=Inner(depth=3), secrets=[Secret("TOKEN", "hidden"), Secret("KEY", "hidden")], renamed=1)
    names = ["title", "inner.depth", "secrets.TOKEN", "secrets.KEY", "otherName"]
    assert list_set_fields(body) == names
    assert list_set_fields([Body("a"), Body("b", note="c")]) == ["title", "note"]
    assert list_set_fields(None) == list_set_fields(b"hidden") == list_set_fields({"hidden": 1}) == []
