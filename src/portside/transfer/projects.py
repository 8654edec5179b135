"""Tracing projects, which experiments are too, with their runs.

A project keeps its id. If the target has another project of the same name, such as `default`, the runs go into that
one.
"""

from typing import Any

from portside.transfer.report import Report
from portside.transfer.runs import RunCarrier
from portside.transfer.server import RemoteServer, RequestRefused, pick, to_id, to_objects

KIND = "projects"
_FIELDS = (
    "id",
    "name",
    "description",
    "extra",
    "start_time",
    "default_dataset_id",
    "reference_dataset_id",
    "trace_tier",
)


def carry_projects(source: RemoteServer, target: RemoteServer, report: Report) -> None:
    """Carry all projects of the workspace with their runs, feedback and attachments."""
    for project in source.pages("/sessions", {"sort_by": "start_time", "sort_by_desc": "false"}):
        with report.item(KIND, project.get("name")):
            source_id = to_id(project["id"])
            target_id = _create(target, report, project)
            RunCarrier(source, target, report, source_id=source_id, target_id=target_id).carry()
            _carry_feedback(source, target, report, source_id, target_id)


def _create(target: RemoteServer, report: Report, project: dict[str, Any]) -> str:
    """Return the id of the project at the target."""
    project_id = to_id(project["id"])
    if target.find(f"/sessions/{project_id}") is not None:
        report.find(KIND)
        return project_id

    try:
        target.call("POST", "/sessions", body=pick(project, *_FIELDS))
    except RequestRefused as refusal:
        if refusal.status != 409:
            raise

        query = {"name": project["name"], "limit": 1}
        existing_projects = to_objects(target.call("GET", "/sessions", query=query))
        if existing_projects:
            report.find(KIND)
            reason = "its runs go into the project of this name that the target has already"
            report.note(KIND, str(project["name"]), reason)
            return to_id(existing_projects[0]["id"])

        # Another workspace of the target has the id.
        fields = (name for name in _FIELDS if name != "id")
        created = target.call("POST", "/sessions", body=pick(project, *fields))
        report.note(KIND, str(project["name"]), "it has another id here, because another workspace has its own")
        project_id = to_id(created["id"])

    if project.get("end_time"):
        target.call("PATCH", f"/sessions/{project_id}", body=pick(project, "end_time"))

    report.carry(KIND)
    return project_id


def _carry_feedback(source: RemoteServer, target: RemoteServer, report: Report, source_id: str, target_id: str) -> None:
    """Carry the feedback on a project as a whole."""
    for feedback in source.pages("/feedback", {"session": source_id, "level": "session"}):
        with report.item("feedback", feedback.get("id")):
            feedback_id = to_id(feedback["id"])
            if feedback.get("run_id") is not None:
                continue

            if target.find(f"/feedback/{feedback_id}") is not None:
                report.find("feedback")
                continue

            fields = pick(feedback, "key", "score", "value", "comment", "correction", "feedback_source", "extra")
            target.call("POST", "/feedback", body={"id": feedback_id, "session_id": target_id, **fields})
            report.carry("feedback")
