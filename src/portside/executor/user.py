"""The user for whom a graph executes, as its code sees the user, and the return values of authentication handlers.

A handler returns a name, a mapping or an object, which becomes a `User`. It may also return `(scopes, user)`, as
Starlette's authentication does; the scopes become the permissions.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from langgraph_sdk.auth import Auth

StudioUser = Auth.types.StudioUser
USER_FIELDS = ("identity", "display_name", "is_authenticated", "permissions")
_current: ContextVar[Any] = ContextVar("graph_user", default=None)


def set_current_user(user: Any) -> None:
    """Let the current task execute for a user."""
    _current.set(user)


def get_current_user() -> Any:
    """Return the user for whom the current code of a graph executes; None without a user, and outside of graphs.

    The user follows Python's context: into tasks, and into the threads of synchronous nodes. A thread that the graph's
    code starts itself has no user.
    """
    return _current.get()


class User(dict[str, Any]):
    """A user: the fields that authentication returned, as items and as attributes; other attributes of the original."""

    __slots__ = ("_original",)

    def __init__(self, fields: dict[str, Any], original: Any = None) -> None:
        super().__init__(fields)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        """Return a field, or an attribute of what authentication returned."""
        if name in self:
            return self[name]
        if name.startswith("_"):
            raise AttributeError(name)

        return getattr(self._original, name)

    def __reduce__(self) -> Any:
        """Copy only the fields: the original may mean nothing where the copy goes, such as into a checkpoint."""
        return (User, (dict(self),))


class NoUser(Exception):
    """Authentication returned nothing that identifies a user."""


class NotAuthenticated(Exception):
    """Authentication returned a user whose `is_authenticated` is false."""


class StudioCaller(StudioUser):
    """A user of the studio: handlers recognise it by `isinstance`, and read it like every other user."""

    __slots__ = ("_fields",)

    def __init__(self, username: str) -> None:
        super().__init__(username, is_authenticated=True)
        self._fields = User(_complete_fields(self, {"kind": "StudioUser"}))

    def __getitem__(self, key: str) -> Any:
        """Return a field by its name."""
        return self._fields[key]

    def __contains__(self, key: object) -> bool:
        """Whether there is a field of this name."""
        return key in self._fields

    def __iter__(self) -> Any:
        """Iterate over the names of the fields."""
        return iter(self._fields)

    def keys(self) -> Any:
        """Return the names of the fields, so that `dict` can copy them."""
        return self._fields.keys()


class Identity(NamedTuple):
    """The result of authentication: the name by which the server knows the user, and the user."""

    identity: str
    display_name: str
    permissions: tuple[str, ...]
    user: Any


def read_identity(returned: Any) -> Identity:
    """Return the identity and the user that authentication returned. Raises NoUser and NotAuthenticated."""
    scopes, returned = _split(returned)
    user: Any = StudioCaller(returned.username) if isinstance(returned, StudioUser) else _to_user(returned)

    identity = user["identity"]
    if not isinstance(identity, str) or not identity:
        raise NoUser("its identity is empty, or not a string")
    if not user["is_authenticated"]:
        raise NotAuthenticated

    if scopes is not None and isinstance(user, User):
        user["permissions"] = scopes

    permissions = user["permissions"] if scopes is None else scopes
    return Identity(
        identity=identity,
        display_name=str(user["display_name"]),
        permissions=tuple(map(str, permissions)),
        user=user,
    )


def _split(returned: Any) -> tuple[list[str] | None, Any]:
    """Split `(scopes, user)` into its parts; anything else is a user without scopes."""
    if not isinstance(returned, (tuple, list)) or hasattr(returned, "identity"):
        return None, returned
    if len(returned) != 2:
        raise NoUser("a sequence must be a pair of scopes and a user")

    scopes, user = returned
    scopes = getattr(scopes, "scopes", scopes)
    if isinstance(scopes, str):
        return [scopes], user
    if scopes is not None and not isinstance(scopes, (Sequence, set, frozenset)):
        raise NoUser("its scopes are neither a list nor a string")

    return None if scopes is None else list(scopes), user


def _to_user(returned: Any) -> User:
    if isinstance(returned, str):
        return User(_complete_fields(None, {"identity": returned}))
    if isinstance(returned, Mapping):
        return User(_complete_fields(None, dict(returned)), original=returned)
    if not hasattr(returned, "identity"):
        raise NoUser(f"{type(returned).__name__} is neither a name nor a mapping or object with an identity")

    return User(_complete_fields(returned, _read_fields(returned)), original=returned)


def _complete_fields(source: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Return all fields of a user, including those that every user has."""
    complete = {**_read_attributes(source), **fields}
    if "identity" not in complete:
        raise NoUser("it has no identity")

    complete.setdefault("is_authenticated", True)
    complete["display_name"] = complete.get("display_name") or complete["identity"]
    complete["permissions"] = list(complete.get("permissions") or ())
    return complete


def _read_attributes(source: Any) -> dict[str, Any]:
    """Return the standard properties that an object has; Starlette's base class raises for those it lacks."""
    attributes = {}
    for name in USER_FIELDS:
        with contextlib.suppress(AttributeError, NotImplementedError):
            attributes[name] = getattr(source, name)

    return attributes


def _read_fields(source: Any) -> dict[str, Any]:
    """Return the fields that an object has beside the standard properties."""
    if hasattr(source, "model_dump"):
        return dict(source.model_dump())
    if dataclasses.is_dataclass(source) and not isinstance(source, type):
        return dataclasses.asdict(source)

    attributes = getattr(source, "__dict__", {})
    return {name: value for name, value in attributes.items() if not name.startswith("_")}
