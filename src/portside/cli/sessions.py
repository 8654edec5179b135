"""`portside sessions`: the browsers and command lines that are signed in."""

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import CommandGroup, json_option, show_json, show_table, show_text

_PATHS = {"own": "/users/me/sessions", "organization": "/orgs/current/sessions"}
_owner_option = click.option(
    "--of",
    "owner",
    type=click.Choice(list(_PATHS)),
    default="own",
    show_default=True,
    help="Your own sessions, or those of all members.",
)


@click.group(cls=CommandGroup)
def sessions() -> None:
    """List and end sessions of browsers and command lines."""


@sessions.command("list")
@_owner_option
@json_option
@connection_options
def list_sessions(platform: Platform, owner: str, *, as_json: bool) -> None:
    """List who is signed in, newest first."""
    items = platform.call("GET", _PATHS[owner])
    if as_json:
        show_json(items)
        return

    rows = [
        (
            s["user_email"] or s["short_key"],
            s["method"],
            s["address"] or "",
            (s["client"] or "")[:40],
            s["last_used_at"][:19],
            s["expires_at"][:19],
            s["id"],
        )
        for s in items
    ]

    show_table(("USER", "SIGNED IN BY", "ADDRESS", "CLIENT", "LAST USED", "EXPIRES", "ID"), rows)


@sessions.command("end")
@click.argument("session_id")
@_owner_option
@connection_options
def end_session(platform: Platform, session_id: str, owner: str) -> None:
    """End the session with this id."""
    platform.call("DELETE", f"{_PATHS[owner]}/{session_id}")
    show_text("ended")
