"""Runs of a project, with their feedback and attachments.

Runs keep their ids and their times. They are sent as imported: they are not billed, and are kept as long as the target
keeps traces that it receives now. A batch is stored in one transaction, so a run that is at the target has its feedback
and its attachments there too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from portside.transfer.report import Report
from portside.transfer.server import MultipartField, RemoteServer, RequestRefused, pick, to_id, to_objects

KIND = "runs"
FEEDBACK = "feedback"
ATTACHMENTS = "attachments"
PAGE = 100
MAX_BYTES = 12 * 1024 * 1024
_JSON = "application/json"
_FIELDS = (
    "name",
    "run_type",
    "start_time",
    "end_time",
    "trace_id",
    "dotted_order",
    "parent_run_id",
    "tags",
    "error",
    "reference_example_id",
)
# What is stored apart from the rest; servers keep large values of them in files.
_LARGE = ("inputs", "outputs", "events", "extra", "serialized")
_SELECT = ("id", *_FIELDS, *_LARGE, "s3_urls", "inputs_s3_urls", "outputs_s3_urls", "session_id")
_OF_FEEDBACK = (
    "id",
    "created_at",
    "modified_at",
    "run_id",
    "trace_id",
    "key",
    "score",
    "value",
    "comment",
    "correction",
    "feedback_source",
    "feedback_group_id",
    "comparative_experiment_id",
    "extra",
)
_ATTACHMENT = "attachment."


class RunCarrier:
    """Carries the runs of one project."""

    def __init__(
        self, source: RemoteServer, target: RemoteServer, report: Report, *, source_id: str, target_id: str
    ) -> None:
        self._source = source
        self._target = target
        self._report = report
        self._source_id = source_id
        self._target_id = target_id

    def carry(self) -> None:
        """Carry all runs, oldest first."""
        cursor: str | None = None
        while True:
            body = {"session": [self._source_id], "limit": PAGE, "order": "asc", "select": _SELECT}
            if cursor is not None:
                body["cursor"] = cursor

            answer = self._source.call("POST", "/runs/query", body=body)
            self._carry_page(to_objects(answer["runs"]))

            cursor = (answer.get("cursors") or {}).get("next")
            if cursor is None:
                return

    def _carry_page(self, runs: Sequence[dict[str, Any]]) -> None:
        """Carry the runs of a page that the target lacks."""
        by_id = {to_id(run["id"]): run for run in runs}
        if not by_id:
            return

        answer = self._target.call(
            "POST", "/runs/query", body={"id": list(by_id), "select": ["id"], "limit": len(by_id)}
        )
        present = {str(run["id"]) for run in to_objects(answer["runs"])}
        self._report.find(KIND, len(present))

        missing = [run_id for run_id in by_id if run_id not in present]
        if not missing:
            return

        feedback = self._read_feedback(missing)
        batch: list[str] = []
        parts: list[MultipartField] = []
        for run_id in missing:
            own_parts: list[MultipartField] = []
            with self._report.item(KIND, run_id):
                own_parts = self._to_parts(run_id, by_id[run_id], feedback.get(run_id, ()))

            if parts and sum(len(part.data) for part in [*parts, *own_parts]) > MAX_BYTES:
                self._send(batch, parts)
                batch, parts = [], []

            if own_parts:
                batch.append(run_id)
                parts += own_parts

        self._send(batch, parts)

    def _read_feedback(self, run_ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the feedback on runs by their ids."""
        feedback: dict[str, list[dict[str, Any]]] = {}
        for item in self._source.pages("/feedback", {"run": run_ids}):
            feedback.setdefault(str(item.get("run_id")), []).append(item)

        return feedback

    def _to_parts(
        self, run_id: str, run: Mapping[str, Any], feedback: Sequence[Mapping[str, Any]]
    ) -> list[MultipartField]:
        """Return the parts of a multipart body that store a run with what belongs to it."""
        fields = {"id": run_id, "session_id": self._target_id, **pick(run, *_FIELDS)}
        parts = [MultipartField(f"post.{run_id}", _JSON, msgspec.json.encode(fields))]
        for name in _LARGE:
            data = self._read_large(run, name)
            if data is not None:
                parts.append(MultipartField(f"post.{run_id}.{name}", _JSON, data))

        for item in feedback:
            with self._report.item(FEEDBACK, item.get("id")):
                feedback_id = to_id(item["id"])
                parts.append(
                    MultipartField(f"feedback.{feedback_id}", _JSON, msgspec.json.encode(pick(item, *_OF_FEEDBACK)))
                )
                self._report.carry(FEEDBACK)

        for key, file in (run.get("s3_urls") or {}).items():
            if not key.startswith(_ATTACHMENT):
                continue

            with self._report.item(ATTACHMENTS, f"{key} of run {run_id}"):
                data = self._source.download(str(file["presigned_url"]))
                content_type = str(file.get("mime_type") or file.get("content_type") or "application/octet-stream")
                name = key.removeprefix(_ATTACHMENT)
                parts.append(MultipartField(f"attachment.{run_id}.{name}", content_type, data))
                self._report.carry(ATTACHMENTS)

        return parts

    def _read_large(self, run: Mapping[str, Any], name: str) -> bytes | None:
        """Return the JSON of a value of a run, which the source may keep in a file."""
        files = run.get("s3_urls") if name not in ("inputs", "outputs") else run.get(f"{name}_s3_urls")
        file = (files or {}).get("ROOT" if name in ("inputs", "outputs") else name)
        if isinstance(file, dict) and file.get("presigned_url"):
            return self._source.download(str(file["presigned_url"]))

        value = run.get(name)
        return None if value is None else msgspec.json.encode(value)

    def _send(self, run_ids: Sequence[str], parts: list[MultipartField]) -> None:
        """Store a batch; if the target refuses it, store its runs one by one, so that only the bad ones are missing."""
        if not run_ids:
            return

        try:
            self._target.upload("/runs/multipart", parts, query={"imported": "true"})
        except RequestRefused as refusal:
            if refusal.status == 403:
                raise
            if len(run_ids) == 1:
                self._report.fail(KIND, run_ids[0], refusal)
                return

            for run_id in run_ids:
                self._send([run_id], _select_parts(parts, run_id))
            return

        self._report.carry(KIND, len(run_ids))


def _select_parts(parts: Sequence[MultipartField], run_id: str) -> list[MultipartField]:
    """Return the parts of one run: its own begin with `post` and are followed by its feedback and attachments."""
    selected: list[MultipartField] = []
    is_own = False
    for part in parts:
        if part.name.startswith("post."):
            is_own = part.name.split(".")[1] == run_id
        if is_own:
            selected.append(part)

    return selected
