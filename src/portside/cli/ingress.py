"""`portside ingress`: what operators of other proxies need."""

import click

from portside.cli.output import show_text
from portside.ingress.examples import PRINTERS, Outer


@click.group()
def ingress() -> None:
    """Print configurations of proxies before the platform."""


@ingress.command("print")
@click.argument("kind", type=click.Choice(list(PRINTERS)))
@click.option("--domain", default="portside.example.com", show_default=True, help="Public host name of the platform.")
@click.option("--agents", type=click.Choice(["path", "host"]), default="path", show_default=True, help="As for 'up'.")
@click.option("--address", default="127.0.0.1:8700", show_default=True, help="Where the proxy reaches the platform.")
@click.option("--proxy", default="127.0.0.1", show_default=True, help="Where the platform sees the proxy.")
def print_configuration(kind: str, domain: str, agents: str, address: str, proxy: str) -> None:
    """Print the configuration of nginx, Caddy or Traefik before a platform that runs with --tls off."""
    show_text(PRINTERS[kind](Outer(domain, address, agents == "host", proxy)), end="")
