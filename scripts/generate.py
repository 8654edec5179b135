"""Writes the reference pages, OpenAPI documents and the Helm chart from the code; `--check` only reports stale ones."""

import inspect
import json
import sys
from pathlib import Path

import click
from console_types import typescript

import portside.agent.app
from portside.agent.http.system import SERVER_INFO
from portside.agent.served_routes import ROUTES as AGENT_ROUTES
from portside.agent.settings import AgentSettings
from portside.cli.helm_chart import build_chart, build_values_page
from portside.cli.main import COMMANDS, portside
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.settings import ListenerSettings
from portside.kernel.errors import error_classes
from portside.kernel.http.openapi import ServerInfo, build_document
from portside.kernel.http.routes import Route
from portside.kernel.schema_files import read_functions
from portside.kernel.settings import describe
from portside.platform.modules import ROUTES as PLATFORM_ROUTES
from portside.platform.modules import SERVER_INFO as PLATFORM
from portside.platform.settings import PlatformSettings

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
NOTE = "<!-- Written by `make generate` from the code; edit the code. -->\n"
PROGRAMS = {
    "The platform (`portside up`)": PlatformSettings,
    "The agent server (`portside serve`, `portside dev`, deployments)": AgentSettings,
    "The listener (`portside listener`)": ListenerSettings,
    "The listener on a cluster (`portside listener --compute kubernetes`)": KubernetesSettings,
}


CONSOLE = ROOT / "console" / "src" / "api"


def main() -> int:
    wanted = {
        REFERENCE / "settings.md": settings_page(),
        REFERENCE / "cli.md": cli_page(),
        REFERENCE / "errors.md": errors_page(),
        REFERENCE / "routes.md": routes_page(),
        REFERENCE / "values.md": build_values_page(),
        REFERENCE / "openapi-platform.json": openapi(PLATFORM, PLATFORM_ROUTES),
        REFERENCE / "openapi-agent.json": openapi(SERVER_INFO, AGENT_ROUTES),
        CONSOLE / "platform.ts": typescript(build_document(PLATFORM, PLATFORM_ROUTES)),
        CONSOLE / "agentServer.ts": typescript(build_document(SERVER_INFO, AGENT_ROUTES)),
        **function_revisions(),
        **{ROOT / path: text for path, text in build_chart().items()},
    }

    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date; run make generate")
        return 1 if stale else 0

    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], "utf-8")
        print(f"wrote {path.relative_to(ROOT)}")

    return 0


def function_revisions() -> dict[Path, str]:
    """Return the content of each package's `functions/revision.txt`; a changed function raises the number."""
    wanted = {}
    for path in sorted((ROOT / "src" / "portside").glob("*/functions/revision.txt")):
        functions = read_functions(f"portside.{path.parents[1].name}")
        is_current = path.read_text("utf-8").split()[1] == functions.checksum
        wanted[path] = f"{functions.revision + (not is_current)} {functions.checksum} {functions.oldest}\n"

    return wanted


def settings_page() -> str:
    lines = [
        "# Settings",
        NOTE,
        "Settings are environment variables. Where a setting has several names, the first one that is set wins.",
    ]

    for title, kind in PROGRAMS.items():
        lines += ["", f"## {title}", "", "| name | type | default | meaning |", "|---|---|---|---|"]
        for found in describe(kind):
            names = ", ".join(f"`{name}`" for name in found.names)
            default = "" if found.default is None else f"`{found.default}`"
            lines.append(f"| {names} | {found.type.replace('|', '&#124;')} | {default} | {found.description} |")

    return "\n".join(lines) + "\n"


def cli_page() -> str:
    lines = ["# Command line", NOTE]
    context = click.Context(portside, info_name="portside")
    for name in COMMANDS:
        command = portside.get_command(context, name)
        assert command is not None
        lines += _command(command, click.Context(command, info_name=name, parent=context), 2)

    return "\n".join(lines) + "\n"


def _command(command: click.Command, context: click.Context, depth: int) -> list[str]:
    lines = [f"{'#' * depth} `{context.command_path}`", "", "```", command.get_help(context), "```", ""]

    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            lines += _command(child, click.Context(child, info_name=name, parent=context), depth + 1)

    return lines


def errors_page() -> str:
    lines = [
        "# Errors",
        NOTE,
        'The body of an error is `{"detail": …}`: a string, or for a failed validation (422) an array of',
        "`{loc, msg, type}`. The code names the error in logs and in this table; the body does not contain it.",
        "",
        "| code | status | meaning |",
        "|---|---|---|",
    ]

    for error in sorted(set(error_classes()), key=lambda e: (e.status, e.code, e.__doc__ or "")):
        meaning = inspect.cleandoc(error.__doc__ or "").split("\n\n", 1)[0].replace("\n", " ")
        lines.append(f"| `{error.code}` | {error.status} | {meaning} |")

    return "\n".join(lines) + "\n"


def routes_page() -> str:
    lines = ["# Routes", NOTE, "Only public routes answer without a key. The platform serves every route below"]
    lines += ["`/api/v1`, `/api` and `/api-host` as well."]
    for title, routes in {"Platform": PLATFORM_ROUTES, "Agent server": AGENT_ROUTES}.items():
        lines += ["", f"## {title}", "", "| route | access | what it does |", "|---|---|---|"]
        for route in sorted(routes, key=lambda r: (r.path, r.method)):
            access = "public" if route.public else (f"`{route.permission}`" if route.permission else "key")
            if title == "Agent server" and not route.public:
                access = "loopback"

            summary = inspect.cleandoc(route.handler.__doc__ or "").split("\n", 1)[0]
            lines.append(f"| `{route.method} {route.path}` | {access} | {summary} |")

    return "\n".join(lines) + "\n"


def openapi(server: ServerInfo, routes: list[Route]) -> str:
    return json.dumps(build_document(server, routes), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.exit(main())
