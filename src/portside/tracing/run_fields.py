"""The fields of a run that clients of version 2 select by upper-case names, and how each is read.

Statuses and run types are upper case too, and costs are numbers. Fields that this server does not have are null.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec

from portside.kernel.db import Record
from portside.kernel.errors import Invalid
from portside.kernel.http.json_validation import read_json
from portside.tracing.types import TracedRun

Selects = Annotated[list[str], msgspec.Meta(max_length=200)]
PREVIEW_CHARS = 250


class RunDetails(msgspec.Struct):
    """A run and its columns from other tables."""

    run: TracedRun
    details: Record
    base_url: str


def read_selects(selects: list[str] | None, where: str) -> set[str]:
    """Return the selected fields. Raises Invalid for an unknown field."""
    selection = {name.upper() for name in selects or ["ID"]}
    if unknown := sorted(selection - set(FIELDS)):
        raise Invalid.field([where, "selects"], f"runs have no field {unknown[0][:100]}")

    return selection


def find_large_fields(selects: Iterable[str]) -> set[str]:
    """Return the large columns that a selection needs; other large columns are not read."""
    return {name for select in selects for name in _LARGE.get(select, ())}


def _read_cost(name: str) -> Callable[[RunDetails], float | None]:
    def read(row: RunDetails) -> float | None:
        text = getattr(row.run, name)
        return None if text is None else float(text)

    return read


def _read_run(name: str) -> Callable[[RunDetails], Any]:
    return lambda row: getattr(row.run, name)


def _read_usage(key: str) -> Callable[[RunDetails], Any]:
    def read(row: RunDetails) -> Any:
        usage = row.details["usage"]
        details = usage.get(key) if isinstance(usage, dict) else None
        return {"raw": details} if isinstance(details, dict) else None

    return read


def _read_cost_details(name: str) -> Callable[[RunDetails], dict[str, Any] | None]:
    def read(row: RunDetails) -> dict[str, Any] | None:
        details = msgspec.json.decode(getattr(row.run, name), type=dict[str, Any] | None)
        return details and {"raw": {key: _to_number(value) for key, value in details.items()}}

    return read


def _to_number(value: Any) -> Any:
    """Return a cost as a number, and what else a client reported unchanged."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _read_preview(name: str) -> Callable[[RunDetails], str | None]:
    def read(row: RunDetails) -> str | None:
        text = row.details[f"{name}_preview"]
        return None if text == "null" else text

    return read


def _get_error_preview(row: RunDetails) -> str | None:
    return row.run.error and row.run.error[:PREVIEW_CHARS]


def _get_metadata(row: RunDetails) -> dict[str, Any] | None:
    try:
        extra = read_json(bytes(row.run.extra))
    except Invalid:
        return None

    metadata = extra.get("metadata") if isinstance(extra, dict) else None
    return metadata if isinstance(metadata, dict) else None


def _get_latency(row: RunDetails) -> float | None:
    run = row.run
    return (run.end_time - run.start_time).total_seconds() if run.end_time else None


def _get_attachment_urls(row: RunDetails) -> dict[str, str]:
    links = row.run.s3_urls or {}
    return {name.removeprefix("attachment."): attachment.presigned_url for name, attachment in links.items()}


def _get_share_url(row: RunDetails) -> str | None:
    token = row.details["share_token"]
    return f"{row.base_url}/public/{token}/run" if token else None


def _get_null(_row: RunDetails) -> None:
    return None


FIELDS: dict[str, Callable[[RunDetails], Any]] = {
    "ID": _read_run("id"),
    "NAME": _read_run("name"),
    "RUN_TYPE": lambda row: row.run.run_type.upper(),
    "STATUS": lambda row: row.run.status.upper(),
    "START_TIME": _read_run("start_time"),
    "END_TIME": _read_run("end_time"),
    "LATENCY_SECONDS": _get_latency,
    "FIRST_TOKEN_TIME": _read_run("first_token_time"),
    "ERROR": _read_run("error"),
    "ERROR_PREVIEW": _get_error_preview,
    "EXTRA": _read_run("extra"),
    "METADATA": _get_metadata,
    "EVENTS": _read_run("events"),
    "INPUTS": _read_run("inputs"),
    "INPUTS_PREVIEW": _read_preview("inputs"),
    "OUTPUTS": _read_run("outputs"),
    "OUTPUTS_PREVIEW": _read_preview("outputs"),
    "MANIFEST": _read_run("serialized"),
    "PARENT_RUN_ID": _read_run("parent_run_id"),
    "PARENT_RUN_IDS": _read_run("parent_run_ids"),
    "PROJECT_ID": _read_run("session_id"),
    "TRACE_ID": _read_run("trace_id"),
    "THREAD_ID": lambda row: row.details["thread_id"],
    "DOTTED_ORDER": _read_run("dotted_order"),
    "IS_ROOT": lambda row: row.run.parent_run_id is None,
    "REFERENCE_EXAMPLE_ID": _read_run("reference_example_id"),
    "REFERENCE_DATASET_ID": lambda row: row.details["reference_dataset_id"],
    "TOTAL_TOKENS": _read_run("total_tokens"),
    "PROMPT_TOKENS": _read_run("prompt_tokens"),
    "COMPLETION_TOKENS": _read_run("completion_tokens"),
    "TOTAL_COST": _read_cost("total_cost"),
    "PROMPT_COST": _read_cost("prompt_cost"),
    "COMPLETION_COST": _read_cost("completion_cost"),
    "PROMPT_TOKEN_DETAILS": _read_usage("input_token_details"),
    "COMPLETION_TOKEN_DETAILS": _read_usage("output_token_details"),
    "PROMPT_COST_DETAILS": _read_cost_details("prompt_cost_details"),
    "COMPLETION_COST_DETAILS": _read_cost_details("completion_cost_details"),
    "PRICE_MODEL_ID": lambda row: row.details["price_id"],
    "TAGS": _read_run("tags"),
    "APP_PATH": _read_run("app_path"),
    "ATTACHMENTS": _get_attachment_urls,
    "THREAD_EVALUATION_TIME": _get_null,
    "IS_IN_DATASET": _get_null,
    "LAST_QUEUED_AT": _get_null,
    "SHARE_URL": _get_share_url,
    "FEEDBACK_STATS": _read_run("feedback_stats"),
    "LS_USER_ID": lambda row: row.details["user_id"],
}
_LARGE = {
    "EXTRA": ("extra",),
    "METADATA": ("extra",),
    "EVENTS": ("events",),
    "INPUTS": ("inputs",),
    "OUTPUTS": ("outputs",),
    "MANIFEST": ("serialized",),
    "FEEDBACK_STATS": ("feedback_stats",),
    "ATTACHMENTS": ("s3_urls",),
}
# Fields that a share link returns: not the user, and no addresses inside the workspace.
PUBLIC_SELECTS = frozenset(FIELDS) - {"LS_USER_ID", "APP_PATH", "SHARE_URL"}
