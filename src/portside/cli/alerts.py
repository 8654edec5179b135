"""`portside alerts`: what is wrong now, and where messages about it are sent."""

from typing import Any

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import CommandGroup, json_option, say, show_json, show_table, show_text
from portside.kernel.errors import UserMistake

_CHANNELS = "/alerts/channels"


@click.group(cls=CommandGroup)
def alerts() -> None:
    """List alerts; configure channels, thresholds and silences."""


@alerts.command("list")
@click.option("--all", "everything", is_flag=True, help="Include alerts that have ended.")
@json_option
@connection_options
def list_alerts(platform: Platform, *, everything: bool, as_json: bool) -> None:
    """List the alerts that fire now."""
    found = platform.call("GET", "/alerts", status=None if everything else "open")
    if as_json:
        show_json(found)
        return

    rows = [
        (
            each["rule"],
            each["name"],
            f"{each['value']:g}",
            each["detail"][:60],
            each["fired_at"][:19],
            (each["ended_at"] or ("silenced" if each["is_silenced"] else "firing"))[:19],
        )
        for each in found
    ]

    show_table(("RULE", "SUBJECT", "VALUE", "DETAIL", "SINCE (UTC)", "UNTIL"), rows)


@alerts.command()
@json_option
@connection_options
def channels(platform: Platform, *, as_json: bool) -> None:
    """List where alerts are sent."""
    found = platform.call("GET", _CHANNELS)
    if as_json:
        show_json(found)
        return

    rows = [
        (
            each["name"],
            each["kind"],
            each["target"],
            (each["last_delivered_at"] or "-")[:19],
            each["last_error"] or "-",
            each["id"],
        )
        for each in found
    ]

    show_table(("NAME", "KIND", "TARGET", "LAST MESSAGE", "ERROR", "ID"), rows)


@alerts.command()
@click.argument("target", nargs=-1, required=True)
@click.option("--name", help="Name of the channel; by default its kind and its host or first address.")
@json_option
@connection_options
def add(platform: Platform, *, target: tuple[str, ...], name: str | None, as_json: bool) -> None:
    """Send alerts to TARGET: the https address of a webhook, or one or more e-mail addresses.

    A webhook's secret, with which its receiver checks signatures, is printed once.
    """
    is_webhook = "://" in target[0]
    if is_webhook and len(target) > 1:
        raise UserMistake("a channel has one webhook; add the others as channels of their own")

    kind = "webhook" if is_webhook else "mail"
    shown = target[0].split("://", 1)[-1].split("/", 1)[0].rpartition("@")[2] if is_webhook else target[0]
    body = {"kind": kind, "name": name or f"{kind} {shown}", **({"url": target[0]} if is_webhook else {"to": target})}

    made = platform.call("POST", _CHANNELS, body=body)
    if as_json:
        show_json(made)
        return

    say(f"added {made['name']}; 'portside alerts test \"{made['name']}\"' sends a message")
    if made["secret"]:
        show_text(made["secret"])


@alerts.command()
@click.argument("channel")
@connection_options
def remove(platform: Platform, channel: str) -> None:
    """Send no more alerts to CHANNEL (its name or id)."""
    platform.call("DELETE", f"{_CHANNELS}/{_channel(platform, channel)['id']}")
    show_text("removed")


@alerts.command()
@click.argument("channel")
@connection_options
def test(platform: Platform, channel: str) -> None:
    """Send a test message to CHANNEL (its name or id) now; exit status 1 if it is not accepted."""
    result = platform.call("POST", f"{_CHANNELS}/{_channel(platform, channel)['id']}/test")
    if not result["is_delivered"]:
        raise UserMistake(f"not delivered: {result['error']}")

    show_text("delivered")


def _channel(platform: Platform, named: str) -> dict[str, Any]:
    """Return a channel by its name or id. Raises UserMistake."""
    for each in platform.call("GET", _CHANNELS):
        if named in {each["name"], each["id"]}:
            return dict(each)

    raise UserMistake(f"there is no channel {named}; 'portside alerts channels' lists them")


@alerts.command()
@json_option
@connection_options
def rules(platform: Platform, *, as_json: bool) -> None:
    """List the rules with their thresholds."""
    found = platform.call("GET", "/alerts/rules")
    if as_json:
        show_json(found)
        return

    rows = [
        (
            each["name"],
            f"{'at most' if each['is_below'] else 'at least'} {each['threshold']:g} {each['unit']}".strip(),
            f"{each['for_s']:g} s",
            "on" if each["is_enabled"] else "off",
            each["summary"],
        )
        for each in found
    ]

    show_table(("RULE", "THRESHOLD", "FOR", "STATE", "MEANING"), rows)


@alerts.command("set")
@click.argument("rule")
@click.option("--threshold", type=float, help="Value at which the rule fires, in its unit.")
@click.option(
    "--for", "for_s", type=float, metavar="SECONDS", help="How long the value must stay there before the rule fires."
)
@click.option("--on/--off", "is_enabled", default=None, help="Switch the rule on or off.")
@connection_options
def set_rule(platform: Platform, rule: str, **given: Any) -> None:
    """Change the threshold of a RULE, or how long it must be reached; switch the rule on or off."""
    platform.call(
        "PATCH", f"/alerts/rules/{rule}", body={key: value for key, value in given.items() if value is not None}
    )
    show_text("changed")


@alerts.command()
@click.argument("rule")
@click.option("--hours", type=float, default=8, show_default=True, help="Hours until the silence ends.")
@click.option("--subject", help="Only for this deployment, listener or limit (its id).")
@click.option("--comment", default="", help="The reason, for other operators.")
@click.option("--end", is_flag=True, help="End all silences of the rule instead.")
@connection_options
def silence(platform: Platform, rule: str, *, end: bool, **given: Any) -> None:
    """Silence a RULE for some hours; alerts that still fire afterwards are sent then."""
    if not end:
        made = platform.call("POST", "/alerts/silences", body={"rule": rule, **given})
        show_text(f"silent until {made['until'][:19]} UTC")
        return

    for each in platform.call("GET", "/alerts/silences"):
        if each["rule"] == rule:
            platform.call("DELETE", f"/alerts/silences/{each['id']}")

    show_text("ended")
