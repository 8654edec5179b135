"""`portside deployments scale`, and what a deployment uses as people read it."""

from typing import Any

import click

from portside.cli.client import Platform, connection_options
from portside.cli.finding import find
from portside.cli.output import json_option, show_json, show_table

REPLICAS = click.IntRange(1, 1000)


@click.command()
@click.argument("deployment")
@click.option("--min", "min_scale", type=REPLICAS, help="Replicas at least.")
@click.option("--max", "max_scale", type=REPLICAS, help="Replicas at most.")
@click.option("--queue-min", "queue_min_scale", type=REPLICAS, help="Replicas that execute runs, at least.")
@click.option("--queue-max", "queue_max_scale", type=REPLICAS, help="Replicas that execute runs, at most.")
@json_option
@connection_options
def scale(platform: Platform, deployment: str, *, as_json: bool, **bounds: int | None) -> None:
    """Set how many replicas a DEPLOYMENT (name or id) may have; a bound that is not given is its revision's again."""
    found = find(platform, deployment)
    made = platform.call("PUT", f"/v2/deployments/{found['id']}/scale", body=bounds)
    if as_json:
        show_json(made)
        return
    rows = [(name, "as its revision says" if number is None else number) for name, number in made.items()]
    show_table(("BOUND", "REPLICAS"), rows)


def usage_of(platform: Platform, deployment: dict[str, Any]) -> dict[str, Any]:
    """Return what a deployment was found to use last."""
    return dict(platform.call("GET", f"/v2/deployments/{deployment['id']}/metrics"))


def show_usage(usage: dict[str, Any]) -> None:
    """Print what a deployment uses; nothing where nothing was measured yet."""
    if usage["measured_at"] is None:
        return
    names = ("replicas", "queue_replicas", "cpu", "memory_mb", "restarts", "pending_runs", "active_runs")
    titles = ("REPLICAS", "QUEUE", "CPU", "MEMORY MB", "RESTARTS", "PENDING RUNS", "ACTIVE RUNS")
    show_table(titles, [tuple("-" if usage[name] is None else usage[name] for name in names)])
    if usage["problem"]:
        click.echo(usage["problem"], err=True)
    click.echo()
