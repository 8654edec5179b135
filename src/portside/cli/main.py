"""`portside`: the top-level command group and the error handling of all commands.

Starting up is cheap: a command's module is imported when that command runs, not for `--help`.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from portside.cli.output import show_text
from portside.kernel import interruption
from portside.kernel.errors import UserMistake


class CommandEntry(NamedTuple):
    """The module of `portside.cli` that defines a command, and the command's line in `portside --help`.

    The function has the command's name, unless that is a word of Python.
    """

    module: str
    help: str
    function: str | None = None


COMMANDS = {
    "up": CommandEntry("up", "Start the platform."),
    "console": CommandEntry("login", "Open the console in a browser, signed in."),
    "dev": CommandEntry("dev", "Serve the agent in this folder, with reload on change."),
    "serve": CommandEntry("serve", "Serve an agent."),
    "listener": CommandEntry("up", "Run a listener that deploys the control plane's deployments."),
    "backup": CommandEntry("backup", "Back up a platform, check and restore backups."),
    "ingress": CommandEntry("ingress", "Print configurations of proxies in front of the platform."),
    "manifests": CommandEntry("manifests", "Print the platform's Kubernetes objects as YAML."),
    "deploy": CommandEntry("deploy", "Deploy an agent from a folder or a git repository."),
    "rollback": CommandEntry("deployments", "Serve an earlier revision again."),
    "logs": CommandEntry("deployments", "Print the build or server log of a deployment."),
    "deployments": CommandEntry("deployments", "List, show, scale and delete deployments."),
    "secrets": CommandEntry("deployments", "List, set and remove the secrets of a deployment."),
    "integrations": CommandEntry("integrations", "Add, list and remove accounts at git hosts."),
    "login": CommandEntry("login", "Log in to a platform, with a browser or a code."),
    "logout": CommandEntry("login", "Log out of a platform."),
    "account": CommandEntry("account", "Show your account, set your password."),
    "organization": CommandEntry("organization", "Show and rename the organization."),
    "workspaces": CommandEntry("organization", "List, create, rename and delete workspaces."),
    "members": CommandEntry("organization", "List, add and remove members, change their roles."),
    "roles": CommandEntry("organization", "List the roles of members and keys."),
    "sessions": CommandEntry("sessions", "List and end sessions of browsers and command lines."),
    "keys": CommandEntry("account", "List, create and revoke API keys; rotate the master key."),
    "alerts": CommandEntry("alerts", "List alerts; configure channels, thresholds and silences."),
    "audit": CommandEntry("audit", "List and export the audit log, check that it is intact."),
    "allowlist": CommandEntry("hosted", "Show the addresses of the hosted service."),
    "limits": CommandEntry("hosted", "Show the rate limits of the hosted API."),
    "disk": CommandEntry("operate", "Show what takes the disk space of the platform."),
    "doctor": CommandEntry("operate", "Examine this installation, and say what to do."),
    "support-bundle": CommandEntry("operate", "Write an archive for support, without secrets."),
    "upgrade": CommandEntry("upgrade", "Upgrade a running platform and its agents to this version."),
    "service": CommandEntry("service", "Install the platform as a service of the system."),
    "prices": CommandEntry("prices", "List and set the prices of models, compute costs again."),
    "import": CommandEntry("transfer", "Carry data over from another server.", "import_group"),
    "usage": CommandEntry("hosted", "Show how many traces were received."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is used."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """List the installed commands. The wheel that deployments get has `serve` alone."""
        return [name for name, entry in COMMANDS.items() if importlib.util.find_spec(f"portside.cli.{entry.module}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. Raises UserMistake for a command that is not in this installation."""
        if cmd_name not in COMMANDS:
            return None

        if cmd_name not in self.list_commands(ctx):
            raise UserMistake(
                f"'portside {cmd_name}' is not installed: this is the agent server alone; install the whole platform"
            )

        entry = COMMANDS[cmd_name]
        module = importlib.import_module(f"portside.cli.{entry.module}")
        command: click.Command = getattr(module, entry.function or cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in self.list_commands(ctx)])


def _show_version(ctx: click.Context, _param: click.Parameter, requested: bool) -> None:  # noqa: FBT001 - click's signature
    if requested and not ctx.resilient_parsing:
        from portside.kernel.version import full_version

        show_text(f"portside, version {full_version()}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def portside() -> None:
    """Deploy and run agents on your own machine, with your own Postgres."""


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line.

    Exit status: 1 after an error, which is one line on standard error; 69 when a port or a database is not available;
    130 after Ctrl-C or SIGTERM. With PORTSIDE_TRACEBACK=1 an unexpected error is raised with its stack trace instead.
    """
    with reported_errors(), interruption.handled():
        leave_closed_home()
        return portside(arguments, prog_name="portside", standalone_mode=False)


def leave_closed_home() -> None:
    """Let HOME name a folder that does not exist, if this user cannot enter the real one.

    That happens in containers that run as another user than their image expects. Programs and libraries look there for
    files that are optional, and take a refusal for a failure: the driver of Postgres for a key, git for its settings.
    """
    try:
        Path("~/.postgresql").expanduser().stat()
    except PermissionError:
        os.environ["HOME"] = "/nonexistent"
    except (OSError, RuntimeError):
        pass  # The file does not exist, or the user has no home.


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Show an error of the block as `main` does, and exit with its status."""
    try:
        yield
    except UserMistake as mistake:
        show_text(f"error: {mistake}", err=True)
        sys.exit(mistake.exit_code)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(interruption.EXIT_CODE)
    except Exception as exc:
        if os.environ.get("PORTSIDE_TRACEBACK") == "1":
            raise

        message = str(exc).strip().split("\n", 1)[0]
        name = type(exc).__name__
        text = f"{name}: {message}" if message else name
        show_text(f"error: {text} (set PORTSIDE_TRACEBACK=1 for the stack trace)", err=True)
        sys.exit(1)
