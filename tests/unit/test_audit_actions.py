"""Every route that may change something says what the audit log records of it, or why nothing."""

from types import SimpleNamespace

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from portside.audit.actions import build_operations, find_action
from portside.audit.log import _to_cell
from portside.audit.recording import Recorder, _list_visible_secrets, list_set_fields
from portside.audit.types import ActionName
from portside.kernel.db import Queries
from portside.kernel.http.audit_actions import Action, Unrecorded
from portside.kernel.http.routes import READING_METHODS, Route
from portside.platform.modules import PACKAGES, ROUTES


def label(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_every_route_that_may_change_something_is_named() -> None:
    changing = [route for route in ROUTES if route.method not in READING_METHODS and not route.read_only]
    assert len(changing) > 100
    for route in changing:
        assert isinstance(route.audit, Action | Unrecorded), label(route)


def test_routes_that_are_not_recorded_keep_their_handlers() -> None:
    """Ingest, runs and reads pay nothing: their handlers are those that would run without the log."""
    wrapped = Recorder(None).wrap_routes(ROUTES)  # type: ignore[arg-type]
    for before, after in zip(ROUTES, wrapped, strict=True):
        assert (before.handler is after.handler) == (not isinstance(before.audit, Action)), label(before)


def test_an_operation_has_the_first_route_of_its_action() -> None:
    operations = build_operations(ROUTES)
    routes = {label(route): route.audit for route in ROUTES if isinstance(route.audit, Action)}
    assert operations.keys() == {action.name for action in routes.values()}
    for name, operation in operations.items():
        assert routes[f"{operation.method} {operation.path}"].name == name

    deletion = operations["deployment.delete"]
    assert (deletion.method, deletion.path) == ("DELETE", "/v2/deployments/{deployment_id}")


def test_a_route_that_nobody_named_stops_the_platform() -> None:
    async def forgotten(_ctx: object) -> None:
        """Change something."""

    for method in ("POST", "PUT", "PATCH", "DELETE"):
        with pytest.raises(ValueError, match=r"/v9/forgotten may change something: name its action"):
            find_action(Route(method, "/v9/forgotten", forgotten, "tests"))

    assert find_action(Route("GET", "/v9/forgotten", forgotten, "tests")) is None
    assert find_action(Route("POST", "/v9/forgotten", forgotten, "tests", read_only=True)) is None
    assert find_action(Route("POST", "/v9/forgotten", forgotten, "tests", audit=Unrecorded("a test"))) is None


def test_actions_have_names_and_their_queries_exist() -> None:
    queries = {query.name: query for package in PACKAGES for query in Queries(package)}
    for route in ROUTES:
        action = find_action(route)
        if action is None:
            continue

        assert msgspec.convert(action.name, ActionName).count(".") == 1, label(route)
        for query in filter(None, (action.id_query, action.related_id_query)):
            assert "id" in queries[query].parameters, label(route)


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


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://user:token@git.example.com/a.git", True),
        ("HTTP://token@git.example.com/a.git", True),
        ("https://git.example.com/a@b.git", False),
        ("git@git.example.com:a.git", False),
        (None, False),
    ],
)
def test_address_of_a_repository_that_holds_a_password_is_a_secret(address: str | None, *, shown: bool) -> None:
    deployment = SimpleNamespace(secrets=[], source_config=SimpleNamespace(repo_url=address))
    assert _list_visible_secrets(deployment) == (["source_config.repo_url"] if shown else [])


def test_secrets_without_a_value_are_not_shown() -> None:
    secrets = [SimpleNamespace(name="SHOWN", value="x"), SimpleNamespace(name="HIDDEN", value="")]
    deployment = SimpleNamespace(secrets=secrets, source_config=SimpleNamespace(repo_url=None))
    assert _list_visible_secrets(deployment) == ["secrets.SHOWN"]


def test_no_cell_of_an_export_is_a_formula() -> None:
    assert [_to_cell(value) for value in ("=1+1", ["@sum", "b"], ["b", "=c"], None)] == ["'=1+1", "'@sum b", "b =c", ""]
