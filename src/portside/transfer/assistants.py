"""Assistants with their versions.

An assistant keeps its id and the numbers of its versions; the times of these are those of the import. The assistant
that each graph has by itself is at the target already, and gets the later versions that it had.
"""

from typing import Any

from portside.transfer.report import Report
from portside.transfer.server import RemoteServer, RequestRefused, pick, to_id

KIND = "assistants"
_FIELDS = ("graph_id", "metadata", "name", "description")


def carry_assistants(source: RemoteServer, target: RemoteServer, report: Report) -> None:
    """Carry all assistants that the caller may see."""
    for assistant in source.search("/assistants/search", {"sort_by": "created_at", "sort_order": "asc"}):
        with report.item(KIND, assistant.get("assistant_id")):
            _carry(source, target, report, assistant)


def _carry(source: RemoteServer, target: RemoteServer, report: Report, assistant: dict[str, Any]) -> None:
    assistant_id = to_id(assistant["assistant_id"])
    versions = sorted(source.search(f"/assistants/{assistant_id}/versions", {}), key=lambda item: int(item["version"]))
    if not versions:
        versions = [assistant]

    present = 0
    existing = target.find(f"/assistants/{assistant_id}")
    if existing is not None:
        present = sum(1 for _ in target.search(f"/assistants/{assistant_id}/versions", {}))
    else:
        try:
            body = {"assistant_id": assistant_id, "if_exists": "do_nothing", **_to_body(versions[0])}
            target.call("POST", "/assistants", body=body)
        except RequestRefused as refusal:
            if refusal.status == 404:
                raise RequestRefused(404, f"the target has no graph {versions[0].get('graph_id')}") from refusal
            raise
        present = 1

    is_new = existing is None or present < len(versions)
    for version in versions[present:]:
        target.call("PATCH", f"/assistants/{assistant_id}", body=_to_body(version))

    numbers = [int(version["version"]) for version in versions]
    active = numbers.index(int(assistant["version"])) + 1 if int(assistant["version"]) in numbers else len(versions)
    if is_new and active != len(versions):
        target.call("POST", f"/assistants/{assistant_id}/latest", body={"version": active})

    if is_new:
        report.carry(KIND)
    else:
        report.find(KIND)


def _to_body(version: dict[str, Any]) -> dict[str, Any]:
    """Return the request for a version. Servers mirror `context` in `config.configurable`, and refuse both."""
    body = pick(version, *_FIELDS)
    config = dict(version.get("config") or {})
    context = version.get("context") or {}
    if context:
        config.pop("configurable", None)
        body["context"] = context

    return {**body, "config": config}
