"""The body of a webhook's call."""

from datetime import datetime
from typing import Any

from portside.agent.webhooks.policy import WebhookPolicy
from portside.kernel.clock import iso
from portside.kernel.codec import dump_api
from portside.kernel.db import Record

IDS = ("run_id", "thread_id", "assistant_id")
AS_STORED = ("metadata", "status", "multitask_strategy", "error", "cancel_reason")
# Keys of `configurable` that the receiver does not get: the user who started the run.
WITHHELD = frozenset({"langgraph_auth_user"})


def build_payload(delivery: Record | dict[str, Any], policy: WebhookPolicy, sent_at: datetime) -> bytes:
    """Return the body of a call as JSON, with the fields that the policy includes."""
    kwargs: dict[str, Any] = delivery["kwargs"]
    tracer: dict[str, Any] = kwargs.get("langsmith_tracer") or {}
    fields = {
        **{name: delivery[name] for name in AS_STORED},
        **{name: str(delivery[name]) for name in IDS},
        "kwargs": _without_caller(kwargs),
        "created_at": iso(delivery["run_created_at"]),
        "updated_at": iso(delivery["run_ended_at"]),
        "langsmith_session_name": tracer.get("project_name"),
        "run_started_at": None if delivery["run_started_at"] is None else iso(delivery["run_started_at"]),
        "run_ended_at": iso(delivery["run_ended_at"]),
        "webhook_sent_at": iso(sent_at),
        "values": delivery["values"],
    }

    return dump_api({name: value for name, value in fields.items() if name in policy.payload_fields})


def _without_caller(kwargs: dict[str, Any]) -> dict[str, Any]:
    config = kwargs.get("config") or {}
    configurable = {key: value for key, value in config.get("configurable", {}).items() if key not in WITHHELD}
    return {**kwargs, "config": {**config, "configurable": configurable}}
