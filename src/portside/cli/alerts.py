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
    items = platform.call("GET", "/alerts", status=None if everything else "open")
    if as_json:
        show_json(items)
        return

    rows = [
        (
            alert["rule"],
            alert["name"],
            f"{alert['value']:g}",
            alert["detail"][:60],
            alert["fired_at"][:19],
            (alert["ended_at"] or ("silenced" if alert["is_silenced"] else "firing"))[:19],
        )
        for alert in items
    ]

    show_table(("RULE", "SUBJECT", "VALUE", "DETAIL", "SINCE (UTC)", "UNTIL"), rows)


@alerts.command()
@json_option
@connection_options
def channels(platform: Platform, *, as_json: bool) -> None:
    """List where alerts are sent."""
    items = platform.call("GET", _CHANNELS)
    if as_json:
        show_json(items)
        return

    rows = [
        (
            channel["name"],
            channel["kind"],
            channel["target"],
            (channel["last_delivered_at"] or "-")[:19],
            channel["last_error"] or "-",
            channel["id"],
        )
        for channel in items
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
    body: dict[str, Any]
    if "://" in target[0]:
        if len(target) > 1:
            raise UserMistake("a channel has one webhook; add the others as channels of their own")

        host = target[0].split("://", 1)[1].split("/", 1)[0].rpartition("@")[2]
        body = {"kind": "webhook", "name": name or f"webhook {host}", "url": target[0]}
    else:
        body = {"kind": "mail", "name": name or f"mail {target[0]}", "to": target}

    channel = platform.call("POST", _CHANNELS, body=body)
    if as_json:
        show_json(channel)
        return

    say(f"added {channel['name']}; 'portside alerts test \"{channel['name']}\"' sends a message")
    if channel["secret"]:
        show_text(channel["secret"])


@alerts.command()
@click.argument("channel")
@connection_options
def remove(platform: Platform, channel: str) -> None:
    """Send no more alerts to CHANNEL (its name or id)."""
    platform.call("DELETE", f"{_CHANNELS}/{_find_channel(platform, channel)['id']}")
    show_text("removed")


@alerts.command()
@click.argument("channel")
@connection_options
def test(platform: Platform, channel: str) -> None:
    """Send a test message to CHANNEL (its name or id) now; exit status 1 if it is not accepted."""
    result = platform.call("POST", f"{_CHANNELS}/{_find_channel(platform, channel)['id']}/test")
    if not result["is_delivered"]:
        raise UserMistake(f"not delivered: {result['error']}")

    show_text("delivered")


def _find_channel(platform: Platform, name_or_id: str) -> dict[str, Any]:
    """Return a channel by its name or id. Raises UserMistake."""
    for channel in platform.call("GET", _CHANNELS):
        if name_or_id in {channel["name"], channel["id"]}:
            return dict(channel)

    raise UserMistake(f"there is no channel {name_or_id}; 'portside alerts channels' lists them")


@alerts.command()
@json_option
@connection_options
def rules(platform: Platform, *, as_json: bool) -> None:
    """List the rules with their thresholds."""
    items = platform.call("GET", "/alerts/rules")
    if as_json:
        show_json(items)
        return

    rows = [
        (
            rule["name"],
            f"{'at most' if rule['is_below'] else 'at least'} {rule['threshold']:g} {rule['unit']}".strip(),
            f"{rule['for_s']:g} s",
            "on" if rule["is_enabled"] else "off",
            rule["summary"],
        )
        for rule in items
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
def set_rule(platform: Platform, rule: str, **options: Any) -> None:
    """Change the threshold of a RULE, or how long it must be reached; switch the rule on or off."""
    change = {name: value for name, value in options.items() if value is not None}
    platform.call("PATCH", f"/alerts/rules/{rule}", body=change)
    show_text("changed")


@alerts.command()
@click.argument("rule")
@click.option("--hours", type=float, default=8, show_default=True, help="Hours until the silence ends.")
@click.option("--subject", help="Only for this deployment, listener or limit (its id).")
@click.option("--comment", default="", help="The reason, for other operators.")
@click.option("--end", is_flag=True, help="End all silences of the rule instead.")
@connection_options
def silence(platform: Platform, rule: str, *, end: bool, **options: Any) -> None:
    """Silence a RULE for some hours; alerts that still fire afterwards are sent then."""
    if not end:
        entry = platform.call("POST", "/alerts/silences", body={"rule": rule, **options})
        show_text(f"silent until {entry['until'][:19]} UTC")
        return

    for entry in platform.call("GET", "/alerts/silences"):
        if entry["rule"] == rule:
            platform.call("DELETE", f"/alerts/silences/{entry['id']}")

    show_text("ended")
