"""The HTTP routes of alerts."""

from dataclasses import dataclass
from uuid import UUID

from portside.alerts import alerts
from portside.alerts.alerts import RuleNotFound, SilenceNotFound
from portside.alerts.channels import AlertChannels, ChannelNotFound, ChannelTaken, NoMailServer
from portside.alerts.rules import Measurements
from portside.alerts.types import (
    Alert,
    AlertQuery,
    Channel,
    ChannelRequest,
    NewChannel,
    RuleInForce,
    RulePatch,
    Silence,
    SilenceRequest,
    TestResult,
)
from portside.kernel.errors import Invalid
from portside.kernel.http import routes as kernel_routes
from portside.kernel.http.audit_actions import Action

_PERMISSION = "organization:manage"


@dataclass(frozen=True, kw_only=True)
class AlertServices(kernel_routes.BaseServices):
    """The services of alerts. Rules are evaluated every `check_s`."""

    channels: AlertChannels
    measurements: Measurements
    check_s: float


Context = kernel_routes.Context[AlertServices]
routes = kernel_routes.Routes[Context]("alerts")


@routes.get("/alerts", permission=_PERMISSION)
async def list_alerts(ctx: Context, query: AlertQuery) -> list[Alert]:
    """List alerts: those that fire first, then those that have ended, newest first."""
    return await alerts.list_alerts(ctx.db, query)


@routes.get("/alerts/rules", permission=_PERMISSION)
async def list_alert_rules(ctx: Context) -> list[RuleInForce]:
    """List the rules with the thresholds in force."""
    return await alerts.list_rules(ctx.db)


@routes.patch("/alerts/rules/{name}", permission=_PERMISSION, raises=(RuleNotFound,), audit=Action("alert_rule.update"))
async def update_alert_rule(ctx: Context, name: str, body: RulePatch) -> RuleInForce:
    """Change the threshold of a rule, or switch it off."""
    return await alerts.update_rule(ctx.db, name, body)


@routes.get("/alerts/channels", permission=_PERMISSION)
async def list_alert_channels(ctx: Context) -> list[Channel]:
    """List where alerts are sent, and whether the last message was delivered."""
    return await ctx.services.channels.list_all(ctx.db)


@routes.post(
    "/alerts/channels",
    permission=_PERMISSION,
    status=201,
    raises=(ChannelTaken, NoMailServer, Invalid),
    audit=Action("alert_channel.create", id_query="insert_channel"),
)
async def create_alert_channel(ctx: Context, body: ChannelRequest) -> NewChannel:
    """Send alerts to a webhook or by mail; the secret that signs a webhook's messages is shown once."""
    return await ctx.services.channels.add(ctx.db, body)


@routes.delete(
    "/alerts/channels/{channel_id}",
    permission=_PERMISSION,
    status=204,
    raises=(ChannelNotFound,),
    audit=Action("alert_channel.delete"),
)
async def delete_alert_channel(ctx: Context, channel_id: UUID) -> None:
    """Send no more alerts there."""
    await ctx.services.channels.remove(ctx.db, channel_id)


@routes.post(
    "/alerts/channels/{channel_id}/test",
    permission=_PERMISSION,
    raises=(ChannelNotFound,),
    audit=Action("alert_channel.test"),
)
async def test_alert_channel(ctx: Context, channel_id: UUID) -> TestResult:
    """Send a test message now, and return whether it was delivered."""
    return await ctx.services.channels.test(channel_id)


@routes.get("/alerts/silences", permission=_PERMISSION)
async def list_alert_silences(ctx: Context) -> list[Silence]:
    """List the silences that have not ended: rules of which no messages are sent."""
    return await alerts.list_silences(ctx.db)


@routes.post(
    "/alerts/silences",
    permission=_PERMISSION,
    status=201,
    raises=(Invalid,),
    audit=Action("alert_silence.create", id_query="insert_silence"),
)
async def create_alert_silence(ctx: Context, body: SilenceRequest) -> Silence:
    """Send no messages of a rule for some hours; an alert that still fires afterwards is sent then."""
    return await alerts.create_silence(ctx.db, body)


@routes.delete(
    "/alerts/silences/{silence_id}",
    permission=_PERMISSION,
    status=204,
    raises=(SilenceNotFound,),
    audit=Action("alert_silence.delete"),
)
async def delete_alert_silence(ctx: Context, silence_id: UUID) -> None:
    """End a silence."""
    await alerts.delete_silence(ctx.db, silence_id)
