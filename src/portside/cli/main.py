"""`portside`: finds the command, and shows mistakes as one line instead of a stack trace."""

import importlib
import os
import sys
from typing import Any

import click

from portside import __version__
from portside.kernel.errors import UserMistake

COMMANDS = {
    "up": "Start the platform.",
    "dev": "Serve the agent in this folder, with reload on change.",
    "serve": "Serve an agent.",
    "listener": "Run a listener that deploys what the control plane asks for.",
    "manifests": "Print the platform as objects for a Kubernetes cluster.",
    "deploy": "Deploy an agent from a folder or a git repository.",
    "rollback": "Let an earlier revision serve again.",
    "logs": "Print what a deployment's build and server say.",
    "deployments": "List, show, follow and delete deployments.",
    "integrations": "Add, list and remove accounts at git hosts.",
    "account": "Log in and out, set one's password, show who one is.",
    "organization": "Show and rename the organization.",
    "workspaces": "List, make, rename and delete workspaces.",
    "members": "List, add and remove members, change their roles.",
    "roles": "List the roles that members and keys may have.",
    "keys": "List, make and revoke API keys; change the master key.",
    "allowlist": "Show the addresses of the hosted service.",
    "limits": "Show the rate limits of the hosted API.",
    "usage": "Show how many traces were received.",
}


class Lazy(click.Group):
    """Imports a command only when it is used, so that `--help` stays quick."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Name every command."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"portside.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="portside")
def portside() -> None:
    """Deploy and run agents on your own machine, with your own Postgres."""


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; exits 1 with one line when something is wrong, 130 on Ctrl-C.

    It exits 69 when a port or a database is not to be had.

    With PORTSIDE_TRACEBACK=1 an error that is nobody's mistake is raised instead.
    """
    try:
        return portside(arguments, prog_name="portside", standalone_mode=False)
    except UserMistake as mistake:
        click.echo(f"error: {mistake}", err=True)
        sys.exit(mistake.exit_code)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception as exc:
        if os.environ.get("PORTSIDE_TRACEBACK") == "1":
            raise
        click.echo(f"error: {_in_one_line(exc)} (PORTSIDE_TRACEBACK=1 shows where)", err=True)
        sys.exit(1)


def _in_one_line(exc: Exception) -> str:
    message = str(exc).strip().split("\n", 1)[0]
    return f"{type(exc).__name__}: {message}" if message else type(exc).__name__
