"""The API of the project's application in our description of ours: what its framework says of it, where it does."""

from collections.abc import Mapping
from typing import Any

import msgspec

from portside.kernel.logs import get_logger

log = get_logger(__name__)
PREFIX = "Custom"
_PLACE = "#/components/"


def described_with(ours: bytes, app: Any) -> bytes:
    """Return our OpenAPI document with the operations of an application that describes itself."""
    if not getattr(app, "openapi_url", None) or not callable(getattr(app, "openapi", None)):
        return ours
    try:
        theirs = msgspec.json.decode(msgspec.json.encode(app.openapi()))
    except Exception:
        # What a description fails on is no reason not to serve: the framework itself finds out as late.
        log.exception("the application of the project cannot be described")
        return ours
    return msgspec.json.encode(_merged(msgspec.json.decode(ours), theirs))


def _merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Add theirs to ours: an operation of theirs replaces one of ours, as it does when it is called."""
    renamed = _clashes(ours.get("components", {}), theirs.get("components", {}))
    theirs = _with_names(theirs, renamed)
    for path, operations in theirs.get("paths", {}).items():
        ours.setdefault("paths", {}).setdefault(path, {}).update(operations)
    for kind, entries in theirs.get("components", {}).items():
        known = ours.setdefault("components", {}).setdefault(kind, {})
        known.update({renamed.get(f"{_PLACE}{kind}/{name}", name): entry for name, entry in entries.items()})
    tags = {tag["name"] for tag in ours.get("tags", [])}
    if new := [tag for tag in theirs.get("tags", []) if tag["name"] not in tags]:
        ours["tags"] = [*ours.get("tags", []), *new]
    return ours


def _clashes(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, str]:
    """Return new names for components of theirs whose names ours have for something else, by their references."""
    return {
        f"{_PLACE}{kind}/{name}": f"{PREFIX}{name}"
        for kind, entries in theirs.items()
        for name, entry in entries.items()
        if name in ours.get(kind, {}) and ours[kind][name] != entry
    }


def _with_names(value: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_names(part, renamed) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_names(part, renamed) for part in value]
    if isinstance(value, str) and value in renamed:
        return f"{value.rpartition('/')[0]}/{renamed[value]}"
    return value
