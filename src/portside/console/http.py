"""The routes of the console: its files, those of the documentation, and the redirect of browsers to it."""

from dataclasses import dataclass
from urllib.parse import quote
from uuid import UUID

from starlette.responses import Response

from portside.console import site
from portside.console.links import LinkedPageQuery, find_page
from portside.console.site import FileNotBuilt, HelpPageNotFound
from portside.identity.pages import render_note
from portside.kernel.errors import NotFound
from portside.kernel.http.routes import BaseServices, RouteOptions
from portside.kernel.http.routes import Context as KernelContext
from portside.kernel.http.routes import Routes as KernelRoutes

_PAGE: RouteOptions = {"public": True, "media_type": "text/html"}
_ROOT: RouteOptions = {**_PAGE, "raises": (NotFound,)}
_FILE: RouteOptions = {**_PAGE, "raises": (FileNotBuilt,)}
_HELP: RouteOptions = {**_PAGE, "raises": (HelpPageNotFound,)}


@dataclass(frozen=True, kw_only=True)
class ConsoleServices(BaseServices):
    """The services of the console's routes."""

    # The origins of agents that pages may call beside their own.
    agent_origins: tuple[str, ...] = ()


Context = KernelContext[ConsoleServices]
routes = KernelRoutes[Context]("console")


@routes.get("/", operation="console_open", **_ROOT)
async def open_console(ctx: Context) -> Response:
    """Send browsers to the console; for other clients there is nothing here."""
    if "text/html" not in ctx.request.headers.get("accept", ""):
        raise NotFound
    return _redirect()


@routes.get("/console", **_PAGE)
async def complete_address(_ctx: Context) -> Response:
    """Send browsers to the address with the slash."""
    return _redirect()


@routes.get("/public/{share_token}/r", **_PAGE)
async def open_shared_run(_ctx: Context, share_token: UUID) -> Response:
    """Send browsers to the page of a shared run; this is the address that SDKs return for it."""
    return _redirect(f"{site.HOME}shared/{share_token}")


@routes.get("/o/{workspace_id}/{path...}", **_PAGE)
async def open_linked_page(_ctx: Context, workspace_id: UUID, path: str, query: LinkedPageQuery) -> Response:
    """Send browsers to the page that a link of an SDK or a command line means, or to the console."""
    page = find_page(path, query)
    join = "&" if "?" in page else "?"
    return _redirect(f"{site.HOME}{page}{join}workspace={workspace_id}")


@routes.get("/prompts/{prompt_name}/{commit}", **_PAGE)
async def open_linked_prompt(_ctx: Context, prompt_name: str, commit: str) -> Response:  # noqa: ARG001 - in the address
    """Send browsers to the page of a prompt, at the address that SDKs return for a commit."""
    return _redirect(f"{site.HOME}prompts/{quote(prompt_name, safe='')}")


@routes.get("/context/{prompt_name}/{commit}", **_PAGE)
async def open_linked_directory(_ctx: Context, prompt_name: str, commit: str) -> Response:  # noqa: ARG001 - in the address
    """Send browsers to the page of an agent or a skill, at the address that SDKs return for a commit."""
    return _redirect(f"{site.HOME}prompts/{quote(prompt_name, safe='')}")


@routes.get("/console/{path...}", **_FILE)
async def get_console_file(ctx: Context, path: str) -> Response:
    """Return a file of the console; every other path is a page of it."""
    if not site.is_built():
        return render_note(*site.MISSING, status=503)
    return site.respond(path, dict(ctx.request.headers), agent_origins=ctx.services.agent_origins)


@routes.get("/help", operation="console_help_address_complete", **_PAGE)
async def complete_help_address(_ctx: Context) -> Response:
    """Send browsers to the address with the slash."""
    return _redirect("/help/")


@routes.get("/help/{path...}", **_HELP)
async def get_help_page(ctx: Context, path: str) -> Response:
    """Return a page of the documentation, or a file that its pages load."""
    is_browser = "text/html" in ctx.request.headers.get("accept", "")
    if is_browser and not site.is_built(site.HELP_FILES):
        return render_note(*site.HELP_MISSING, status=404)
    return site.respond_with_help(path, dict(ctx.request.headers))


def _redirect(address: str = site.HOME) -> Response:
    return Response(status_code=307, headers={"Location": address, "Cache-Control": "no-store"})
