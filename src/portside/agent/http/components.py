"""The React components of a project, for web pages."""

from typing import Annotated

import msgspec
from starlette.responses import Response

from portside.agent.http.context import Context, Routes
from portside.agent.http.request_headers import get_base_url, names_etag
from portside.agent.ui import BundleFile, ComponentsNotFound
from portside.kernel.local_addresses import is_loopback_url

routes = Routes("ui")


class ComponentRequest(msgspec.Struct):
    """A component, by the name that the code of a graph pushes."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


@routes.post("/ui/{name}", media_type="text/html", raises=(ComponentsNotFound,), returns=str, read_only=True)
async def get_ui_component(ctx: Context, name: str, body: ComponentRequest) -> Response:
    """Return the HTML with which a page loads a React component of the project."""
    page = await ctx.services.bundles.page(name, body.name, _address_for_pages(ctx))
    return Response(page, headers={"Cache-Control": "no-store"}, media_type="text/html")


# Browsers request scripts and style sheets of other origins without the headers of a client.
@routes.get(
    "/ui/{name}/{file}",
    public=True,
    media_type="text/javascript",
    raises=(ComponentsNotFound,),
    returns=str,
    request_headers=("If-None-Match",),
    response_headers=("ETag",),
    responses={304: None},
)
async def get_ui_bundle(ctx: Context, name: str, file: str) -> Response:
    """Return the script or the style sheet of a project's React components."""
    bundle: BundleFile = await ctx.services.bundles.file(name, file)
    headers = {"Cache-Control": "no-cache", "ETag": bundle.etag, "X-Content-Type-Options": "nosniff"}
    if names_etag(ctx.request.headers.get("if-none-match", ""), bundle.etag):
        return Response(status_code=304, headers=headers)

    return Response(bundle.content, headers=headers, media_type=bundle.media_type)


def _address_for_pages(ctx: Context) -> str:
    """Return the public URL; without a scheme if a proxy may have received the request over TLS and does not say so."""
    url = get_base_url(ctx)
    is_scheme_known = (
        ctx.services.settings.public_url or "x-forwarded-proto" in ctx.request.headers or is_loopback_url(url)
    )
    return url if is_scheme_known else url.removeprefix("http:")
