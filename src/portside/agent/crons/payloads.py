"""The payload of a cron: the request that a client sent, stored as JSON, and made into the request of each run."""

from typing import Any
from uuid import UUID

import msgspec

from portside.agent.encryption.context import stored_context
from portside.agent.runs.requests import RunIds, build_kwargs, refuse_unsupported
from portside.agent.types.assistants import Assistant
from portside.agent.types.crons import CronRun
from portside.agent.types.runs import RunCreate
from portside.kernel.http.decode import convert

NIL_ID = UUID(int=0)
RUN_FIELDS = frozenset(RunCreate.__struct_fields__)

Payload = dict[str, Any]


def to_payload(body: CronRun, assistant_id: UUID, cron_id: UUID) -> Payload:
    """Return the body as the client sent it, with the assistant's id, and the cron's id in the config of each run."""
    payload: Payload = msgspec.to_builtins(body)
    payload.pop("cron_id", None)
    if "is_enabled" in payload:
        payload["enabled"] = payload.pop("is_enabled")

    payload["assistant_id"] = str(assistant_id)

    config = payload.get("config", {})
    configurable = {**config.get("configurable", {}), "cron_id": str(cron_id)}
    payload["config"] = {**config, "configurable": configurable}

    return payload | stored_context()


def patch_payload(payload: Payload, patch: CronRun, assistant_id: UUID, cron_id: UUID) -> Payload:
    """Return the payload with the fields of a patch replaced."""
    patched = payload | to_payload(patch, assistant_id, cron_id)
    if patch.config is None:
        patched["config"] = payload["config"]

    return {name: value for name, value in patched.items() if name != "end_time" or value is not None}


def to_run_request(payload: Payload, metadata: dict[str, Any], on_run_completed: str | None) -> RunCreate:
    """Return the request for each run of a cron, without the cron's id, which the client did not send.

    Raises Invalid if another version, which supported more, stored the payload.
    """
    config = payload["config"]
    configurable = {name: value for name, value in config["configurable"].items() if name != "cron_id"}

    fields = {name: value for name, value in payload.items() if name in RUN_FIELDS}
    fields["config"] = {**config, "configurable": configurable}
    fields["metadata"] = metadata
    fields["on_completion"] = on_run_completed

    run: RunCreate = convert(fields, RunCreate, "body")
    return run


def refuse_bad_run(assistant: Assistant, run: RunCreate) -> None:
    """Refuse a cron whose runs would all be refused. Raises Invalid and BadRequest."""
    refuse_unsupported(run)
    build_kwargs(assistant, run, RunIds(NIL_ID, NIL_ID, ""), {})
