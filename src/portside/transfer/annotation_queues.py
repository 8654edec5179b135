"""Annotation queues with their runs, and the configurations of feedback keys.

A queue keeps its id. Its runs must be at the target: carry the projects first.
"""

from typing import Any

from portside.transfer.report import Report
from portside.transfer.server import RemoteServer, RequestRefused, pick, to_id

KIND = "annotation-queues"
QUEUED_RUNS = "queued runs"
CONFIGS = "feedback-configs"
_FIELDS = ("id", "name", "description", "rubric_instructions", "rubric_items")


def carry_feedback_configs(source: RemoteServer, target: RemoteServer, report: Report) -> None:
    """Carry the configurations of feedback keys."""
    present = {config["feedback_key"] for config in target.pages("/feedback-configs", {})}
    for config in source.pages("/feedback-configs", {}):
        with report.item(CONFIGS, config.get("feedback_key")):
            if config["feedback_key"] in present:
                report.find(CONFIGS)
                continue

            fields = ("feedback_key", "feedback_config", "is_lower_score_better")
            target.call("POST", "/feedback-configs", body=pick(config, *fields))
            report.carry(CONFIGS)


def carry_annotation_queues(source: RemoteServer, target: RemoteServer, report: Report) -> None:
    """Carry all queues of the workspace."""
    for queue in source.pages("/annotation-queues", {}):
        with report.item(KIND, queue.get("name")):
            _carry(source, target, report, queue)


def _carry(source: RemoteServer, target: RemoteServer, report: Report, queue: dict[str, Any]) -> None:
    queue_id = to_id(queue["id"])
    path = f"/annotation-queues/{queue_id}"
    is_present = target.find(path) is not None
    if not is_present:
        body = pick(queue, *_FIELDS)
        body["rubric_items"] = [
            pick(item, "feedback_key", "description", "value_descriptions", "score_descriptions", "is_required")
            for item in queue.get("rubric_items") or ()
        ]
        target.call("POST", "/annotation-queues", body=body)

    present = {to_id(run["id"]) for run in target.pages(f"{path}/runs", {"exclude_values": "true"})}
    for run in source.pages(f"{path}/runs", {"exclude_values": "true"}):
        with report.item(QUEUED_RUNS, run.get("id")):
            run_id = to_id(run["id"])
            if run_id in present:
                report.find(QUEUED_RUNS)
                continue

            _add(target, path, run_id, run.get("last_reviewed_time"))
            report.carry(QUEUED_RUNS)

    if is_present:
        report.find(KIND)
    else:
        report.carry(KIND)


def _add(target: RemoteServer, path: str, run_id: str, reviewed_at: str | None) -> None:
    try:
        [entry] = target.call("POST", f"{path}/runs", body=[run_id])
    except RequestRefused as refusal:
        if refusal.status in (404, 422):
            raise RequestRefused(
                refusal.status, "the target does not have the run; carry its project first"
            ) from refusal
        raise

    if reviewed_at is not None:
        target.call("PATCH", f"{path}/runs/{to_id(entry['id'])}", body={"last_reviewed_time": reviewed_at})
