"""The API reference as a web page: one file that asks nobody but its own server, and may do nothing else.

The page (`reference.html`) reads `openapi.json` beside it. Its policy names its script and its style by their hashes,
so that nothing that finds its way into the page runs.
"""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from starlette.responses import Response


@cache
def reference_page() -> tuple[bytes, str]:
    """Return the page and its content security policy."""
    page = files("portside.kernel.http").joinpath("reference.html").read_bytes()
    policy = (
        f"default-src 'none'; script-src {_hash(page, b'script')}; style-src {_hash(page, b'style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def _hash(page: bytes, tag: bytes) -> str:
    (content,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"


def reference_response() -> Response:
    """Answer with the page."""
    page, policy = reference_page()
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Response(page, headers=headers, media_type="text/html")
