"""The OpenAPI document of this server together with that of the project's web application."""

from collections.abc import Mapping
from typing import Any

import msgspec

from portside.kernel.logs import get_logger

log = get_logger(__name__)
CLASH_PREFIX = "Custom"
_COMPONENTS = "#/components/"


def add_project_api(ours: bytes, app: Any) -> bytes:
    """Return our OpenAPI document with the operations of the project's application, if it has an OpenAPI document."""
    if not getattr(app, "openapi_url", None) or not callable(getattr(app, "openapi", None)):
        return ours

    try:
        theirs = msgspec.json.decode(msgspec.json.encode(app.openapi()))
    except Exception:
        # Serve without the project's part of the document. FastAPI alone would also fail only when somebody reads it.
        log.exception("the application of the project cannot be described")
        return ours

    return msgspec.json.encode(_merge_documents(msgspec.json.decode(ours), theirs))


def _merge_documents(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Add their operations to ours; theirs override ours, as their routes do."""
    renamed = _clashes(ours.get("components", {}), theirs.get("components", {}))
    theirs = _with_names(theirs, renamed)
    for path, operations in theirs.get("paths", {}).items():
        ours.setdefault("paths", {}).setdefault(path, {}).update(operations)

    for kind, entries in theirs.get("components", {}).items():
        components = ours.setdefault("components", {}).setdefault(kind, {})
        components.update({renamed.get(f"{_COMPONENTS}{kind}/{name}", name): entry for name, entry in entries.items()})

    tags = {tag["name"] for tag in ours.get("tags", [])}
    if new := [tag for tag in theirs.get("tags", []) if tag["name"] not in tags]:
        ours["tags"] = [*ours.get("tags", []), *new]

    return ours


def _clashes(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, str]:
    """Return new names for their components that have the name of a different one of ours, by reference."""
    return {
        f"{_COMPONENTS}{kind}/{name}": f"{CLASH_PREFIX}{name}"
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
