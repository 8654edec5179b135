"""The React components of a project over HTTP: the HTML that loads one, its scripts and its style sheets."""

import re
from typing import Annotated

import msgspec
from starlette.responses import Response

from portside.agent.http.services import Context, Routes, base_url, names_etag
from portside.agent.ui import BundleFile, ComponentsNotFound

routes = Routes("ui")
_LOOPBACK = re.compile(r"http://(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?:[:/]|$)")


class ComponentRequest(msgspec.Struct):
    """A component, by the name that the code of a graph pushes."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


@routes.post("/ui/{name}", media_type="text/html", raises=(ComponentsNotFound,), returns=str, read_only=True)
async def show_component(ctx: Context, name: str, body: ComponentRequest) -> Response:
    """Return the HTML with which a page loads a React component of the project."""
    page = await ctx.services.bundles.page(name, body.name, _address_for_pages(ctx))
    return Response(page, 200, {"Cache-Control": "no-store"}, "text/html")


# Browsers request scripts and style sheets of other origins without the headers of a client.
@routes.get(
    "/ui/{name}/{file}", public=True, media_type="text/javascript", raises=(ComponentsNotFound,), returns=str,
    request_headers=("If-None-Match",), response_headers=("ETag",), responses={304: None},
)  # fmt: skip
async def read_bundle(ctx: Context, name: str, file: str) -> Response:
    """Return the script or the style sheet of a project's React components."""
    found: BundleFile = await ctx.services.bundles.file(name, file)
    headers = {"Cache-Control": "no-cache", "ETag": found.etag, "X-Content-Type-Options": "nosniff"}
    if names_etag(ctx.request.headers.get("if-none-match", ""), found.etag):
        return Response(None, 304, headers)
    return Response(found.content, 200, headers, found.media_type)


def _address_for_pages(ctx: Context) -> str:
    """Return the public URL; without a scheme if a proxy may have received the request over TLS and does not say so."""
    url = base_url(ctx)
    is_known = ctx.services.settings.public_url or "x-forwarded-proto" in ctx.request.headers or _LOOPBACK.match(url)
    return url if is_known else url.removeprefix("http:")
