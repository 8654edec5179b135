"""Links to attachments, for the routes that return runs and examples."""

from portside.tracing.attachments import DownloadLinks
from portside.tracing.services import Context


def build_links(ctx: Context) -> DownloadLinks:
    """Return the links of a request, below the address that the client used."""
    return DownloadLinks(ctx.services.box, str(ctx.request.base_url))
