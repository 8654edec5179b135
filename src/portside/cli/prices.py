"""`portside prices`: the prices of models, and costs of past runs that are computed again."""

import re
import time
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import CommandGroup, json_option, say, show_json, show_table, show_text
from portside.kernel.errors import UserMistake

_PATH = "/model-price-map"
_MILLION = Decimal(1_000_000)
_POLL_S = 1.0


@click.group(cls=CommandGroup)
def prices() -> None:
    """List and set the prices of models, compute costs again."""


@prices.command("list")
@click.argument("text", required=False)
@click.option(
    "--models", is_flag=True, help="List the models that runs of the last 30 days used, those without a price first."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print the shipped table, the format of MODEL_PRICES_FILE.")
@json_option
@connection_options
def list_prices(platform: Platform, text: str | None, *, models: bool, as_csv: bool, as_json: bool) -> None:
    """List the prices of models in USD for a million tokens, with TEXT only of models that contain it."""
    if as_csv:
        show_text(read_shipped_table(), end="")
        return

    query = {"q": text} if text and not models else {}
    entries = platform.call("GET", f"{_PATH}/models" if models else _PATH, **query)
    if as_json:
        show_json(entries)
    elif models:
        rows = [
            (
                entry["name"],
                entry["provider"] or "-",
                entry["runs"],
                entry["prompt_tokens"] + entry["completion_tokens"],
                entry["total_cost"] or "-",
                entry["price_name"] or "none",
            )
            for entry in entries
            if not text or text.lower() in entry["name"].lower()
        ]

        show_table(("MODEL", "PROVIDER", "RUNS", "TOKENS", "USD", "PRICE"), rows)
    else:
        show_table(
            ("NAME", "PROVIDER", "PATTERN", "INPUT", "OUTPUT", "CACHE READ", "SOURCE", "ID"),
            [_to_row(entry) for entry in entries],
        )


def _to_row(price: dict[str, Any]) -> tuple[str, ...]:
    details = price["prompt_cost_details"] or {}
    costs = (price["prompt_cost"], price["completion_cost"], details.get("cache_read"))
    per_million = ("-" if cost is None else format((Decimal(cost) * _MILLION).normalize(), "f") for cost in costs)
    price_id = price["id"] if price["source"] == "workspace" else "-"
    return price["name"], price["provider"] or "any", price["match_pattern"], *per_million, price["source"], price_id


def read_shipped_table() -> str:
    """Return the table of prices that is shipped."""
    from importlib.resources import files

    return files("portside.tracing").joinpath("prices.csv").read_text("utf-8")


@prices.command("set")
@click.argument("model")
@click.option("--input", "prompt", required=True, metavar="USD", help="USD for a million input tokens.")
@click.option("--output", "completion", required=True, metavar="USD", help="USD for a million output tokens.")
@click.option("--cache-read", metavar="USD", help="USD for a million input tokens that were read from a cache.")
@click.option("--cache-write", metavar="USD", help="USD for a million input tokens that were written to a cache.")
@click.option(
    "--cache-write-1h",
    metavar="USD",
    help="USD for a million input tokens that were written to a cache for an hour; without it, like --cache-write.",
)
@click.option("--reasoning", metavar="USD", help="USD for a million reasoning tokens; without it, like output.")
@click.option("--provider", help="Only runs of this provider (metadata ls_provider).")
@click.option("--from", "start", type=click.DateTime(["%Y-%m-%d"]), help="First day (UTC) of the price.")
@click.option("--pattern", is_flag=True, help="MODEL is a regular expression that matches the whole name.")
@json_option
@connection_options
def set_price(  # noqa: PLR0913 - one parameter for each option
    platform: Platform,
    model: str,
    *,
    provider: str | None,
    start: datetime | None,
    pattern: bool,
    as_json: bool,
    **options: str | None,
) -> None:
    """Set the price of a MODEL in this workspace, for runs that are written from now on.

    It replaces the workspace's price of the same model, provider and first day.
    """
    cache_write = _parse_price(options["cache_write"])
    details = {
        "cache_read": _parse_price(options["cache_read"]),
        "cache_creation": cache_write,
        "ephemeral_5m_input_tokens": cache_write,
        "ephemeral_1h_input_tokens": _parse_price(options["cache_write_1h"]) or cache_write,
    }

    reasoning = _parse_price(options["reasoning"])
    body = {
        "name": model,
        "match_pattern": model if pattern else re.escape(model),
        "provider": provider,
        "start_time": start and start.replace(tzinfo=UTC).isoformat(),
        "prompt_cost": _parse_price(options["prompt"]),
        "completion_cost": _parse_price(options["completion"]),
        "prompt_cost_details": {name: cost for name, cost in details.items() if cost is not None} or None,
        "completion_cost_details": {"reasoning": reasoning} if reasoning is not None else None,
    }

    key = ("match_pattern", "provider")
    earlier = [
        price
        for price in platform.call("GET", _PATH, q=model)
        if price["source"] == "workspace"
        and all(price[name] == body[name] for name in key)
        and _day(price["start_time"]) == _day(body["start_time"])
    ]

    if earlier:
        response = platform.call("PUT", f"{_PATH}/{earlier[0]['id']}", body=body)
    else:
        response = platform.call("POST", _PATH, body=body)

    if as_json:
        show_json(response)
    else:
        say(f"{model} has its price; 'portside prices recompute' applies it to past runs")


def _day(text: Any) -> str:
    return str(text or "")[:10]


def _parse_price(text: str | None) -> str | None:
    """Return a price for a million tokens as one for a token. Raises UserMistake."""
    if text is None:
        return None

    try:
        price = Decimal(text.removeprefix("$")) / _MILLION
    except InvalidOperation as exc:
        raise UserMistake(f"{text!r} is not a price; use USD for a million tokens, such as 2.50") from exc

    if not price.is_finite() or price < 0:
        raise UserMistake(f"{text!r} is not a price; use USD for a million tokens, such as 2.50")

    return format(price, "f")


@prices.command()
@click.argument("model")
@connection_options
def unset(platform: Platform, model: str) -> None:
    """Remove this workspace's prices of a MODEL (its name or the price's id)."""
    matches = [
        price
        for price in platform.call("GET", _PATH)
        if price["source"] == "workspace" and model in {price["name"], price["id"]}
    ]
    if not matches:
        raise UserMistake(f"this workspace has no price of {model}; 'portside prices list' shows its prices")

    for price in matches:
        platform.call("DELETE", f"{_PATH}/{price['id']}")

    say(f"removed {len(matches)} price{'s' if len(matches) > 1 else ''} of {model}")


@prices.command()
@click.option("--project", help="Only runs of this tracing project (name).")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="First day (UTC); by default all time.")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), help="Day (UTC) before which runs started.")
@click.option("--stop", is_flag=True, help="Stop all recomputations that are running.")
@json_option
@connection_options
def recompute(  # noqa: PLR0913 - one parameter for each option
    platform: Platform,
    *,
    project: str | None,
    since: datetime | None,
    until: datetime | None,
    stop: bool,
    as_json: bool,
) -> None:
    """Recompute the costs of past runs with today's prices, and show the progress.

    The platform continues when this command is interrupted, and after a restart; --stop ends it.
    """
    if stop:
        _stop(platform)
        return

    body = {
        "session_id": _find_project(platform, project) if project else None,
        "start_time": since and since.replace(tzinfo=UTC).isoformat(),
        "end_time": until and until.replace(tzinfo=UTC).isoformat(),
    }

    work = platform.call("POST", f"{_PATH}/recomputations", body=body)
    while not (work["finished_at"] or work["cancelled_at"]):
        say(f"{work['progress']:4.0%}  {work['runs']} model runs, {work['changed']} changed")
        if work["error"]:
            say(f"      a batch failed and is tried again at {work['retry_at']}: {work['error']}")

        time.sleep(_POLL_S)
        work = platform.call("GET", f"{_PATH}/recomputations/{work['id']}")

    if as_json:
        show_json(work)
    else:
        say(f"{'done' if work['finished_at'] else 'stopped'}: {work['runs']} model runs, {work['changed']} changed")


def _stop(platform: Platform) -> None:
    running = [
        work
        for work in platform.call("GET", f"{_PATH}/recomputations")
        if not (work["finished_at"] or work["cancelled_at"])
    ]

    for work in running:
        platform.call("DELETE", f"{_PATH}/recomputations/{work['id']}")

    say(f"stopped {len(running)}")


def _find_project(platform: Platform, name: str) -> str:
    projects = platform.call("GET", "/sessions", name=name, limit=1)
    if not projects:
        raise UserMistake(f"there is no tracing project {name} in this workspace; the console lists its projects")

    return str(projects[0]["id"])
