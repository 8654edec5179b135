"""From what a client asks of a cron to what is stored, and from that to the runs it makes (contract: section 7)."""

from typing import Any
from uuid import UUID

import msgspec

from portside.agent.encryption.context import kept_context
from portside.agent.runs.requests import Ids, refuse_unsupported, run_kwargs
from portside.agent.types.assistants import Assistant
from portside.agent.types.crons import CronRun
from portside.agent.types.runs import RunCreate
from portside.kernel.http.decode import convert

NO_ID = UUID(int=0)
RUN_FIELDS = frozenset(RunCreate.__struct_fields__)


def payload_of(body: CronRun, assistant_id: UUID, cron_id: UUID) -> dict[str, Any]:
    """Return the body as it was sent, with the assistant's id, and the cron's where each run finds it."""
    payload: dict[str, Any] = msgspec.to_builtins(body)
    if "is_enabled" in payload:
        payload["enabled"] = payload.pop("is_enabled")
    payload["assistant_id"] = str(assistant_id)
    return _with_cron_id(payload, cron_id)


def changed_payload(payload: dict[str, Any], patch: CronRun, assistant_id: UUID, cron_id: UUID) -> dict[str, Any]:
    """Return the payload with what a patch replaces."""
    changed = {**payload, **payload_of(patch, assistant_id, cron_id)}
    if patch.config is None:
        changed["config"] = payload["config"]
    return {name: value for name, value in changed.items() if name != "end_time" or value is not None}


def _with_cron_id(payload: dict[str, Any], cron_id: UUID) -> dict[str, Any]:
    config = payload.get("config", {})
    configurable = {**config.get("configurable", {}), "cron_id": str(cron_id)}
    return {**payload, "config": {**config, "configurable": configurable}, **kept_context()}


def run_of(payload: dict[str, Any], metadata: dict[str, Any], on_run_completed: str | None) -> RunCreate:
    """Return what each run of a cron is made with. The cron's id is left out: it is no word of the client.

    Raises Invalid when the payload was stored by a version that understood more.
    """
    config = payload["config"]
    own = {name: value for name, value in config["configurable"].items() if name != "cron_id"}
    fields = {name: value for name, value in payload.items() if name in RUN_FIELDS}
    fields |= {"metadata": metadata, "on_completion": on_run_completed, "config": {**config, "configurable": own}}
    run: RunCreate = convert(fields, RunCreate, "body")
    return run


def refuse_bad_run(assistant: Assistant, run: RunCreate) -> None:
    """Refuse now what each firing would be refused for. Raises Invalid and BadRequest."""
    refuse_unsupported(run)
    run_kwargs(assistant, run, Ids(NO_ID, NO_ID, ""), {})
