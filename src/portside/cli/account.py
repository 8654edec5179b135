"""`portside account`: who one is at a platform, logging in and out there, and one's password."""

from contextlib import closing
from datetime import datetime

import click

from portside.cli.asking import ask_secret
from portside.cli.client import Platform, connection_options, home_option, logins_of, url_option
from portside.cli.output import json_option, show_json
from portside.kernel.errors import UserMistake


@click.group()
def account() -> None:
    """Log in and out, set one's password, show who one is."""


@account.command()
@json_option
@connection_options
def show(platform: Platform, *, as_json: bool) -> None:
    """Show whom the key or login stands for, in which workspace, and what it may do."""
    found = platform.call("GET", "/auth")
    if as_json:
        show_json(found)
        return
    for label, value in (("user", found["user_email"]), ("key", found["short_key"]),
                         ("workspace", found["workspace_name"]), ("may", ", ".join(found["permissions"]))):  # fmt: skip
        click.echo(f"{label:<11}{value or '-'}")


@account.command()
@click.argument("email")
@click.option("--workspace", help="Act in this workspace from now on. [default: yours, where there is just one]")
@url_option
@home_option
def login(email: str, workspace: str | None, url: str, home: str) -> None:
    """Log in as the user with this EMAIL for twelve hours; the password is asked for, or read from standard input.

    The login is kept in the home folder, readable by you alone, and commands without a key use it.
    """
    from portside.cli.logins import Login

    body = {"email": email, "password": ask_secret("Password")}
    with closing(Platform(url, None)) as stranger:
        made = stranger.call_with_password("POST", "/login", body)
    token, expires_at = made["access_token"], datetime.fromisoformat(made["expires_at"])
    with closing(Platform(url, None, Login(token, expires_at))) as platform:
        entered = _workspace_of(platform, workspace)
    logins_of(home).keep(platform.url, Login(token, expires_at, entered["id"] if entered else None))
    click.echo(f"logged in as {email}" + (f", in the workspace {entered['display_name']}" if entered else ""))


def _workspace_of(platform: Platform, named: str | None) -> dict[str, str] | None:
    if named is not None:
        return platform.find_workspace(named)
    known = platform.call("GET", "/workspaces")
    return known[0] if len(known) == 1 else None


@account.command()
@url_option
@home_option
def logout(url: str, home: str) -> None:
    """End the login that is kept for a platform."""
    logins, address = logins_of(home), url.rstrip("/")
    if (login := logins.find(address)) is None:
        raise UserMistake(f"there is no login at {address}")
    logins.keep(address, None)
    with closing(Platform(url, None, login)) as platform:
        platform.call("POST", "/logout")
    click.echo("logged out")


@account.command()
@click.option("--first", is_flag=True, help="There is no password yet, so that none is asked for.")
@connection_options
def password(platform: Platform, *, first: bool) -> None:
    """Set one's password: the current one and the new one are asked for, or read from standard input, a line each."""
    current = None if first else ask_secret("Current password")
    platform.call_with_password("PUT", "/users/me/password", {"current": current, "new": ask_secret("New password")})
    click.echo("the password is set, and other logins are over")
