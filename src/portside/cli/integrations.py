"""`portside integrations`: accounts at git hosts, whose tokens give access to private repositories."""

from typing import Any

import click

from portside.cli.client import Platform, ask_secret, connection_options
from portside.cli.output import CommandGroup, json_option, show_json, show_table, show_text
from portside.kernel.errors import UserMistake

PATH = "/v1/integrations/git_hosting"


@click.group(cls=CommandGroup)
def integrations() -> None:
    """Add, list and remove accounts at git hosts."""


@integrations.command("list")
@json_option
@connection_options
def list_(platform: Platform, *, as_json: bool) -> None:
    """List the integrations; plain git is built in."""
    items = platform.call("GET", f"{PATH}/install")
    if as_json:
        show_json(items)
        return

    yes = {True: "yes", False: "no"}
    rows = [(i["name"], i["kind"], i["base_url"], yes[i["has_token"]], yes[i["has_webhook"]], i["id"]) for i in items]
    show_table(("NAME", "KIND", "ADDRESS", "TOKEN", "WEBHOOK", "ID"), rows)


@integrations.command()
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(["github", "gitlab", "gitea"]),
    required=True,
    help="Kind of the host; Forgejo is gitea.",
)
@click.option("--base-url", help="The host's address. [default: github.com or gitlab.com]")
@click.option("--no-token", is_flag=True, help="Add the account without a token, for public repositories.")
@json_option
@connection_options
def add(platform: Platform, *, no_token: bool, as_json: bool, **options: Any) -> None:
    """Add an account under a NAME; prompts for its token, or reads it from standard input."""
    token = None if no_token else ask_secret("Token", hint=", or use --no-token")
    integration = platform.call("POST", PATH, body={**options, "token": token})

    if as_json:
        show_json(integration)
    else:
        show_text(integration["id"])


@integrations.command()
@click.argument("name")
@connection_options
def token(platform: Platform, name: str) -> None:
    """Replace the token of the integration NAME; prompts for it, or reads it from standard input."""
    integration = _find_integration(platform, name)
    platform.call("PATCH", f"{PATH}/{integration['id']}", body={"token": ask_secret("Token")})
    show_text(f"{name} has a new token")


@integrations.command()
@click.argument("name")
@json_option
@connection_options
def repos(platform: Platform, name: str, *, as_json: bool) -> None:
    """List the repositories that the integration NAME can read."""
    repositories = platform.call("GET", f"{PATH}/{_find_integration(platform, name)['id']}/repos")
    if as_json:
        show_json(repositories)
        return

    show_table(
        ("OWNER", "NAME", "BRANCH", "ADDRESS"),
        [(r["owner"], r["name"], r["default_branch"], r["url"]) for r in repositories],
    )


@integrations.command()
@click.argument("name")
@json_option
@connection_options
def webhook(platform: Platform, name: str, *, as_json: bool) -> None:
    """Create the webhook of the integration NAME, or replace its secret; prints the values for the git host."""
    hook = platform.call("POST", f"{PATH}/{_find_integration(platform, name)['id']}/webhook")
    if as_json:
        show_json(hook)
        return

    lines = (
        ("address", hook["url"]),
        ("secret", hook["secret"]),
        ("content type", hook["content_type"]),
        ("events", ", ".join(hook["events"])),
    )
    for label, value in lines:
        show_text(f"{label:<14}{value}")


@integrations.command()
@click.argument("name")
@connection_options
def remove(platform: Platform, name: str) -> None:
    """Remove the integration NAME, which no deployment may use."""
    platform.call("DELETE", f"{PATH}/{_find_integration(platform, name)['id']}")
    show_text(f"{name} is removed")


def _find_integration(platform: Platform, name: str) -> dict[str, Any]:
    """Return an integration by name or id. Raises UserMistake for an unknown one."""
    for integration in platform.call("GET", f"{PATH}/install"):
        if name in {integration["name"], integration["id"]}:
            return dict(integration)

    raise UserMistake(f"there is no integration named {name}; 'portside integrations list' shows them")
