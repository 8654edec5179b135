"""The page that shows the OpenAPI document of a server.

The page (`reference.html`) reads `openapi.json` from its own server and connects to no other host. Its content
security policy allows its script and its style by their hashes, so an injected script does not run.
"""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from starlette.responses import Response


def build_reference_response() -> Response:
    """Return the response with the page."""
    page, policy = read_reference_page()
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    return Response(page, headers=headers, media_type="text/html")


@cache
def read_reference_page() -> tuple[bytes, str]:
    """Return the page and its content security policy."""
    page = files("portside.kernel.http").joinpath("reference.html").read_bytes()
    policy = (
        f"default-src 'none'; script-src {_hash(page, b'script')}; style-src {_hash(page, b'style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    return page, policy


def _hash(page: bytes, tag: bytes) -> str:
    """Return the hash of the content of the only element with a tag, as a policy names it."""
    (content,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    return f"'sha256-{digest}'"
