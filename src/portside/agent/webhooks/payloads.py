"""What is told of a run that ended (contract: section 11): the run, its moments, the thread's values, and the error."""

from datetime import datetime
from typing import Any

from portside.agent.encryption.codec import UNREADABLE
from portside.agent.webhooks.policy import WebhookPolicy
from portside.kernel.clock import iso
from portside.kernel.codec import dump_api
from portside.kernel.db import Record

IDS = ("run_id", "thread_id", "assistant_id")
SEALED = ("kwargs", "metadata", "error", "values")
AS_STORED = ("metadata", "status", "multitask_strategy", "error", "cancel_reason")
# Whoever asked for the run is known to its receiver by other means, or not at all.
KEPT_TO_OURSELVES = frozenset({"langgraph_auth_user"})


def is_readable(owed: Record) -> bool:
    """Whether all that is to be told could be decrypted."""
    return not any(isinstance(owed[name], dict) and UNREADABLE in owed[name] for name in SEALED)


def payload_of(owed: Record, policy: WebhookPolicy, sent_at: datetime) -> bytes:
    """Return the body of a call as JSON, with the fields that the policy tells."""
    kwargs: dict[str, Any] = owed["kwargs"]
    tracer: dict[str, Any] = kwargs.get("langsmith_tracer") or {}
    fields = {
        **{name: owed[name] for name in AS_STORED},
        **{name: str(owed[name]) for name in IDS},
        "kwargs": _without_caller(kwargs),
        "created_at": iso(owed["run_created_at"]),
        "updated_at": iso(owed["run_ended_at"]),
        "langsmith_session_name": tracer.get("project_name"),
        "run_started_at": None if owed["run_started_at"] is None else iso(owed["run_started_at"]),
        "run_ended_at": iso(owed["run_ended_at"]),
        "webhook_sent_at": iso(sent_at),
        "values": owed["values"],
    }
    return dump_api({name: value for name, value in fields.items() if name in policy.told})


def _without_caller(kwargs: dict[str, Any]) -> dict[str, Any]:
    config = kwargs.get("config") or {}
    configurable = {key: value for key, value in config.get("configurable", {}).items() if key not in KEPT_TO_OURSELVES}
    return {**kwargs, "config": {**config, "configurable": configurable}}
