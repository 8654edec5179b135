"""Datasets with their versions, splits and tags, and the attachments of examples.

Datasets and examples keep their ids, and versions their times: reading a dataset as of a moment gives the same examples
at both servers. Each version of the source is written by one request, so it is at the target completely or not at all.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from portside.transfer.report import Report
from portside.transfer.server import MultipartField, RemoteServer, RequestRefused, pick, to_id, to_objects

KIND = "datasets"
EXAMPLES = "examples"
_JSON = "application/json"
_SPLIT = "dataset_split"
# Requests of this size are accepted everywhere; a larger version becomes several, a microsecond apart.
MAX_BYTES = 12 * 1024 * 1024
MAX_IDS = 100
_FIELDS = (
    "id",
    "name",
    "description",
    "data_type",
    "inputs_schema_definition",
    "outputs_schema_definition",
    "metadata",
)
_SELECT = ("inputs", "outputs", "metadata", "created_at", "source_run_id", "attachment_urls")


def carry_datasets(source: RemoteServer, target: RemoteServer, report: Report) -> None:
    """Carry all datasets of the workspace."""
    for dataset in source.pages("/datasets", {}):
        with report.item(KIND, dataset.get("name")):
            _carry(source, target, report, dataset)


def _carry(source: RemoteServer, target: RemoteServer, report: Report, dataset: dict[str, Any]) -> None:
    dataset_id = to_id(dataset["id"])
    is_present = target.find(f"/datasets/{dataset_id}") is not None
    if not is_present:
        try:
            target.call("POST", "/datasets", body=pick(dataset, *_FIELDS))
        except RequestRefused as refusal:
            if refusal.status == 409:
                raise RequestRefused(
                    409, "the target has another dataset of this name; rename one of them"
                ) from refusal
            raise

    is_changed = _carry_versions(source, target, report, dataset_id)
    if is_present and not is_changed:
        report.find(KIND)
    else:
        report.carry(KIND)


def _carry_versions(source: RemoteServer, target: RemoteServer, report: Report, dataset_id: str) -> bool:
    """Carry the versions that the target lacks, oldest first; return whether there was one."""
    path = f"/datasets/{dataset_id}/versions"
    versions = sorted(source.pages(path, {}), key=lambda version: _to_moment(version["as_of"]))
    present = {_to_moment(version["as_of"]) for version in target.pages(path, {})}
    is_changed = False
    previous: str | None = None

    for version in versions:
        as_of = str(version["as_of"])
        if _to_moment(as_of) not in present:
            _carry_version(source, target, report, dataset_id, as_of=as_of, previous=previous)
            is_changed = True

        for tag in version.get("tags") or ():
            if tag != "latest":
                body = {"as_of": as_of, "tag": str(tag)}
                target.call("PUT", f"/datasets/{dataset_id}/tags", body=body)

        previous = as_of

    return is_changed


def _carry_version(  # noqa: PLR0913 - one version, and where it goes
    source: RemoteServer, target: RemoteServer, report: Report, dataset_id: str, *, as_of: str, previous: str | None
) -> None:
    """Write what one version changed."""
    if previous is None:
        query = {"dataset": dataset_id, "as_of": as_of, "select": _SELECT}
        examples = list(source.pages("/examples", query))
        removed: list[str] = []
    else:
        query = {"from_version": previous, "to_version": as_of}
        difference = source.call("GET", f"/datasets/{dataset_id}/versions/diff", query=query)
        changed = [*difference["examples_added"], *difference["examples_modified"]]
        examples = _read_examples(source, dataset_id, as_of, [to_id(example_id) for example_id in changed])
        removed = [to_id(example_id) for example_id in difference["examples_removed"]]

    steps: list[Any] = [removed[start : start + 1000] for start in range(0, len(removed), 1000)]
    steps += _batch([_to_parts(source, report, dataset_id, example) for example in examples])

    for position, step in enumerate(steps):
        moment = _to_moment(as_of) - timedelta(microseconds=len(steps) - 1 - position)
        query = {"as_of": moment.isoformat()}
        if position < len(removed) / 1000:
            target.call("DELETE", "/examples", query={**query, "example_ids": step})
        else:
            target.upload("/platform/examples/multipart", step, query=query)

    report.carry(EXAMPLES, len(examples))


def _read_examples(source: RemoteServer, dataset_id: str, as_of: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    examples: list[dict[str, Any]] = []
    for start in range(0, len(ids), MAX_IDS):
        query = {
            "dataset": dataset_id,
            "as_of": as_of,
            "id": ids[start : start + MAX_IDS],
            "select": _SELECT,
            "limit": MAX_IDS,
        }
        examples += to_objects(source.call("GET", "/examples", query=query))

    return examples


def _to_parts(
    source: RemoteServer, report: Report, dataset_id: str, example: Mapping[str, Any]
) -> list[MultipartField]:
    """Return the parts of a multipart body that create an example, or replace it."""
    example_id = to_id(example["id"])
    metadata = dict(example.get("metadata") or {})
    split = metadata.pop(_SPLIT, None)
    fields = {"dataset_id": dataset_id, **pick(example, "created_at", "source_run_id"), "metadata": metadata}
    if split:
        fields["split"] = split

    parts = [MultipartField(example_id, _JSON, msgspec.json.encode(fields))]
    parts.append(MultipartField(f"{example_id}.inputs", _JSON, msgspec.json.encode(example.get("inputs") or {})))
    if example.get("outputs") is not None:
        parts.append(MultipartField(f"{example_id}.outputs", _JSON, msgspec.json.encode(example["outputs"])))

    for name, attachment in (example.get("attachment_urls") or {}).items():
        with report.item("attachments", f"{name} of example {example_id}"):
            data = source.download(str(attachment["presigned_url"]))
            content_type = str(attachment.get("mime_type") or "application/octet-stream")
            parts.append(
                MultipartField(f"{example_id}.attachment.{name.removeprefix('attachment.')}", content_type, data)
            )

    return parts


def _batch(examples: Sequence[list[MultipartField]]) -> list[list[MultipartField]]:
    """Group examples into bodies of a size that servers accept."""
    batches: list[list[MultipartField]] = []
    size = 0
    for parts in examples:
        added = sum(len(part.data) for part in parts)
        if not batches or size + added > MAX_BYTES:
            batches.append([])
            size = 0

        batches[-1].extend(parts)
        size += added

    return batches


def _to_moment(text: Any) -> datetime:
    return datetime.fromisoformat(str(text))
