"""From what authentication returns to a caller: a name, a mapping or an object becomes one kind of user."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from langgraph_sdk.auth import Auth

from portside.agent.types.access import INSIDE, Caller, User

StudioUser = Auth.types.StudioUser
OWN = ("identity", "display_name", "is_authenticated", "permissions")


class NoUser(Exception):
    """Authentication returned nothing that names a user."""


class NotAuthenticated(Exception):
    """Authentication returned a user who says not to be authenticated."""


class FromStudio(StudioUser):
    """A person who uses the studio: what handlers know by `isinstance`, readable like every other user."""

    __slots__ = ("_shown",)

    def __init__(self, username: str) -> None:
        super().__init__(username, is_authenticated=True)
        self._shown = User(_shown(self, {"kind": "StudioUser"}))

    def __getitem__(self, key: str) -> Any:
        """Return a field by its name."""
        return self._shown[key]

    def __contains__(self, key: object) -> bool:
        """Whether there is a field of this name."""
        return key in self._shown

    def __iter__(self) -> Any:
        """Iterate over the names of the fields."""
        return iter(self._shown)

    def keys(self) -> Any:
        """Return the names of the fields, so that `dict` can copy them."""
        return self._shown.keys()


def caller_from(returned: Any) -> Caller:
    """Return the caller that authentication returned. Raises NoUser and NotAuthenticated."""
    if isinstance(returned, StudioUser):
        returned = FromStudio(returned.username)
    user: Any = returned if isinstance(returned, FromStudio) else _user(returned)
    identity = user["identity"]
    if not isinstance(identity, str) or not identity:
        raise NoUser("its identity is no text, or empty")
    if not user["is_authenticated"]:
        raise NotAuthenticated
    return Caller(identity, str(user["display_name"]), tuple(map(str, user["permissions"])), user)


def caller_again(user: Mapping[str, Any]) -> Caller:
    """Return the caller that a stored user is of. Nobody, who has no identity, is this process."""
    if not user.get("identity"):
        return INSIDE
    is_studio = user.get("kind") == "StudioUser"
    return caller_from(StudioUser(user["identity"], is_authenticated=True) if is_studio else dict(user))


def _user(returned: Any) -> User:
    if isinstance(returned, str):
        return User(_shown(None, {"identity": returned}))
    if isinstance(returned, Mapping):
        return User(_shown(None, dict(returned)), original=returned)
    if not hasattr(returned, "identity"):
        raise NoUser(f"{type(returned).__name__} is no name, no mapping with an identity, and no object with one")
    return User(_shown(returned, _fields(returned)), original=returned)


def _shown(source: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Return all fields of a user, those that every user has among them."""
    shown = {**{name: getattr(source, name) for name in OWN if hasattr(source, name)}, **fields}
    if "identity" not in shown:
        raise NoUser("it has no identity")
    shown.setdefault("is_authenticated", True)
    shown["display_name"] = shown.get("display_name") or shown["identity"]
    shown["permissions"] = list(shown.get("permissions") or ())
    return shown


def _fields(source: Any) -> dict[str, Any]:
    """Return what an object says of itself beside what every user has."""
    if hasattr(source, "model_dump"):
        return dict(source.model_dump())
    if dataclasses.is_dataclass(source) and not isinstance(source, type):
        return dataclasses.asdict(source)
    given = getattr(source, "__dict__", {})
    return {name: value for name, value in given.items() if not name.startswith("_")}
