"""The routes of what this platform does not offer: they answer 501."""

from uuid import UUID

from portside.kernel.errors import NotSupported
from portside.kernel.http.audit_actions import Unrecorded
from portside.tracing.services import Context, Routes
from portside.tracing.types import Accepted

routes = Routes("tracing")
_ABSENT = Unrecorded("answers 501")


class NoModel(NotSupported):
    """The platform has no model of its own and generates nothing; call a model from an agent."""

    code = "no_model"


class NoRules(NotSupported):
    """The platform has no automation rules to trigger."""

    code = "no_rules"


@routes.post("/generate", operation="generations_create", permission="prompts:create", raises=(NoModel,), audit=_ABSENT)
async def generate(_ctx: Context) -> Accepted:
    """Return 501: the platform has no model."""
    raise NoModel


@routes.post(
    "/runs/rules/trigger", operation="rules_bulk_trigger", permission="rules:update", raises=(NoRules,), audit=_ABSENT
)
async def trigger_rules(_ctx: Context) -> Accepted:
    """Return 501: the platform has no automation rules."""
    raise NoRules


@routes.post("/runs/rules/{rule_id}/trigger", permission="rules:update", raises=(NoRules,), audit=_ABSENT)
async def trigger_rule(_ctx: Context, rule_id: UUID) -> Accepted:
    """Return 501: the platform has no automation rules."""
    raise NoRules(f"This platform has no automation rules, and none with the id {rule_id}.")
