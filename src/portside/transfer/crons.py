"""Crons with their schedules.

A cron keeps its id. It is paused at the target unless the caller starts crons: as long as the source runs, its own
would fire too.
"""

from typing import Any

from portside.transfer.report import Report
from portside.transfer.server import RemoteServer, pick, to_id

KIND = "crons"
_OF_RUN = (
    "input",
    "context",
    "interrupt_before",
    "interrupt_after",
    "stream_mode",
    "stream_subgraphs",
    "stream_resumable",
    "durability",
    "webhook",
    "multitask_strategy",
)
# What a server adds to the configuration of a cron's runs.
_OF_SERVER = frozenset({"cron_id", "thread_id", "run_id", "graph_id", "assistant_id", "user_id"})


def carry_crons(source: RemoteServer, target: RemoteServer, report: Report, *, starts: bool = False) -> None:
    """Carry all crons that the caller may see; `starts` lets those run that were not paused."""
    for cron in source.search("/runs/crons/search", {"sort_by": "created_at", "sort_order": "asc"}):
        with report.item(KIND, cron.get("cron_id")):
            _carry(target, report, cron, starts=starts)


def _carry(target: RemoteServer, report: Report, cron: dict[str, Any], *, starts: bool) -> None:
    cron_id = to_id(cron["cron_id"])
    if target.find(f"/runs/crons/{cron_id}") is not None:
        report.find(KIND)
        return

    was_enabled = bool(cron.get("enabled", cron.get("is_enabled", True)))
    body = {
        **_build_run(cron.get("payload") or {}),
        **pick(cron, "schedule", "timezone", "end_time"),
        "cron_id": cron_id,
        "assistant_id": to_id(cron["assistant_id"]),
        "is_enabled": was_enabled and starts,
    }

    if cron.get("metadata"):
        body["metadata"] = cron["metadata"]

    if cron.get("thread_id"):
        path = f"/threads/{to_id(cron['thread_id'])}/runs/crons"
    else:
        path = "/runs/crons"
        if cron.get("on_run_completed") == "keep":
            body["on_run_completed"] = "keep"

    target.call("POST", path, body=body)
    report.carry(KIND)
    if was_enabled and not starts:
        report.note(KIND, cron_id, f"is paused here ({cron['schedule']}); resume it when the source has stopped")


def _build_run(payload: dict[str, Any]) -> dict[str, Any]:
    run = pick(payload, *_OF_RUN)
    config = dict(payload.get("config") or {})
    configurable = {
        key: value
        for key, value in (config.pop("configurable", None) or {}).items()
        if key not in _OF_SERVER and not key.startswith(("langgraph_", "__"))
    }

    if configurable and not run.get("context"):
        config["configurable"] = configurable
    config.pop("metadata", None)
    return {**run, "config": config} if config else run
