"""`portside service`: the platform as a service of the system, which starts with the machine."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from portside.cli.client import DEFAULT_HOME
from portside.cli.output import CommandGroup, json_option, say, show_json, show_text
from portside.kernel.errors import UserMistake

if TYPE_CHECKING:
    from portside.operate.service import Service

# What `systemctl status` exits with for a unit that does not run.
NOT_RUNNING = 3
# The folder of the system whose service commands on this machine know.
ROOT = Path("/")
_root_option = click.option(
    "--root", type=click.Path(path_type=Path), default=Path("/"), help="Folder of the system. [default: /]"
)


@click.group(cls=CommandGroup)
def service() -> None:
    """Install the platform as a systemd service, with a user of its own."""


@service.command()
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    help="Home folder of the platform. [default: that of the installed service, or /var/lib/portside]",
)
@click.option(
    "--user",
    help="User that it runs as; created if it is missing. [default: that of the installed service, or portside]",
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A first setting; may be repeated.")
@click.option("--containers", is_flag=True, help="Allow what rootless podman needs, to deploy images.")
@click.option("--start/--no-start", default=True, help="Start the service now.")
@click.option("--print", "prints", is_flag=True, help="Print the unit, and change nothing.")
@_root_option
def install(settings: tuple[str, ...], *, prints: bool, root: Path, **options: Any) -> None:
    """Install the service, or bring it up to date after an upgrade, and start it.

    It runs as a user of its own, starts with the machine, and is restarted when it fails. Its settings are in
    /etc/portside/portside.env.
    """
    from portside.operate.service import install as install_service

    current = read_installed_service(root)
    home = (options["home"] or current.home).absolute()
    new = msgspec.structs.replace(
        current, home=home, user=options["user"] or current.user, has_containers=options["containers"]
    )

    if prints:
        show_text(new.unit, end="")
        return

    first_settings = {}
    for setting in settings:
        name, is_set, value = setting.partition("=")
        if not (is_set and name.isidentifier() and value.isprintable()):
            raise UserMistake(f"--set {name}: write NAME=VALUE, on one line")

        first_settings[name] = value

    install_service(new, first_settings, say, starts=options["start"])


@service.command()
@_root_option
def uninstall(root: Path) -> None:
    """Stop and remove the service. The home, its data, the settings and the user stay."""
    from portside.operate.service import uninstall as uninstall_service

    uninstall_service(read_installed_service(root), say)


@service.command()
@_root_option
@json_option
def status(root: Path, *, as_json: bool) -> None:
    """Show whether the service is installed, starts with the machine, and runs; exit status 3 if it does not run."""
    from portside.operate.service import get_status

    state = get_status(read_installed_service(root))
    if as_json:
        show_json(state)
    else:
        for name, value in state.items():
            show_text(f"{name:<22} {value}")

        if state["LoadState"] == "not-found":
            show_text("The service is not installed; 'portside service install' does it.")

        if state.get("is_current") == "no":
            show_text("The unit is of another version or was changed; 'portside service install' writes it again.")

    if state["ActiveState"] != "active":
        sys.exit(NOT_RUNNING)


def read_installed_service(root: Path) -> "Service":
    """Return the service as its unit and its settings describe it, or the usual one."""
    import re

    from portside.operate.service import Service, list_writable_folders, read_settings

    usual = Service(root=root.absolute())
    try:
        text = usual.unit_file.read_text()
    except OSError:
        return usual

    user = re.search(r"^User=(.+)$", text, re.MULTILINE)
    home = re.search(r"^WorkingDirectory=(.+)$", text, re.MULTILINE)
    try:
        folders = list_writable_folders(read_settings(usual.settings_file))
    except OSError:
        # Other users may not read the settings. The unit has the folders that they named when it was written.
        line = re.search(r"^ReadWritePaths=.* /var/tmp(.*)$", text, re.MULTILINE)
        matches = re.findall(r'"-([^"]+)"|-(\S+)', line[1]) if line else []
        folders = tuple(Path((quoted or plain).replace("%%", "%")) for quoted, plain in matches)

    return Service(
        root=usual.root,
        user=user[1] if user else usual.user,
        # The unit has % twice, because one begins a specifier.
        home=Path(home[1].replace("%%", "%")) if home else usual.home,
        has_containers="Delegate=yes" in text,
        writable_folders=folders,
    )


def read_environment(env_file: Path | None, home: str | None) -> dict[str, str]:
    """Return the variables that the platform of a home runs with: of this process, and of a file of settings.

    Without a file, that of the service is read, if the service has this home. Raises UserMistake for a missing file.
    """
    from portside.operate.service import read_settings

    if env_file is not None:
        try:
            return {**read_settings(env_file), **os.environ}
        except OSError as exc:
            raise UserMistake(f"--env-file: {env_file} cannot be read: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise UserMistake(f"{env_file} is not UTF-8 text: {exc.reason} in byte {exc.start}") from exc

    service = read_installed_service(ROOT)
    folder = Path(home or os.environ.get("PORTSIDE_HOME") or DEFAULT_HOME).expanduser().absolute()
    settings: dict[str, str] = {}

    if folder == service.home:
        try:
            settings = read_settings(service.settings_file)
        except (OSError, ValueError):
            settings = {}

    return {**settings, **os.environ}
