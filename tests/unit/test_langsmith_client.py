"""Every request of the stock `langsmith` client for Python is served, or docs/compatibility.md lists it as missing.

The addresses are found by reading the client's own files: text that begins like a path, with X for what is filled in.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import langsmith

from portside.platform.modules import PREFIXES, ROUTES

CLIENT = Path(langsmith.__file__).parent
COMPATIBILITY = Path(__file__).parents[2] / "docs" / "compatibility.md"
# An id is nothing but what is filled in.
SERVED = re.compile("|".join({re.sub(r"\{\w+\}", "[^/]+", re.sub(r"\{\w+_id\}", "X", r.path)) for r in ROUTES}))
# Addresses of web pages, what stands before an address, and pieces of one.
NO_ROUTES = re.compile(
    r"/(o|hub|prompts)/|/public/X/[rd]$|(/api)?(/v1)?/?(platform/)?X?$|/X/|/commits/X?/?$|/repos/$|/annotation-queues/X/run$"
)
# How addresses begin that are not served, each in the words of docs/compatibility.md.
NOT_SERVED = (
    "/sessions/X/insights",
    "/sessions/resolutions",
    "/workspaces/current/secrets",
    "/agents",
    "/runs/rules",
    "/platform/annotation-queues",
    "/platform/datasets/X/examples/X",
    "/platform/evaluators",
    "/platform/issues",
    "/platform/product-feedbacks",
    "/prompt-webhooks",
    "/v1/fleet",
    "/api/v2/public/X/run",
    "/api/v2/runs/X/share",
    "/api/v2/runs/X/url",
    "/api/v2/sandboxes",
    "/api/v2/threads/X",
    "/api/v2/threads/stats",
    "/api/v2/traces/query",
    "/annotation-queues/X/export",
    "/annotation-queues/X/queues",
    "/annotation-queues/X/runs/delete",
    "/annotation-queues/X/total_archived",
    "/annotation-queues/X/total_size",
    "/annotation-queues/populate",
    "/annotation-queues/status",
)


def addresses(file: Path) -> Iterator[str]:
    """The texts of a file that look like the path of an address, without its query."""
    tree = ast.parse(file.read_text("utf-8"))
    pieces = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
            text = re.sub(r"\{\w+\}", "X", node.value)
        else:
            continue

        if re.fullmatch(r"X?/[a-zA-Z][\w/.-]*(\?.*)?", text):
            yield text.removeprefix("X").split("?")[0]


def find_addresses() -> set[str]:
    """All addresses of the client, without the prefixes that every route has, but for those of version 2."""
    files = [CLIENT / "client.py", *(CLIENT / "resources").rglob("*.py")]
    found = {address for file in files for address in addresses(file) if not NO_ROUTES.match(address)}
    return {address.removeprefix("/api/v1") for address in found}


def is_served(address: str) -> bool:
    """Whether a route has this path."""
    path = next((address.removeprefix(prefix) for prefix in PREFIXES if address.startswith(f"{prefix}/")), address)
    return SERVED.fullmatch(path) is not None


def test_what_the_client_asks_for_is_served_or_known_not_to_be() -> None:
    asked = find_addresses()
    missing = {address for address in asked if not is_served(address)}
    assert len(asked - missing) > 50
    assert sorted(address for address in missing if not address.startswith(NOT_SERVED)) == []
    served_by_now = [start for start in NOT_SERVED if not any(address.startswith(start) for address in missing)]
    assert served_by_now == []


def test_routes_that_are_not_served_are_documented() -> None:
    text = COMPATIBILITY.read_text("utf-8")
    assert [start for start in NOT_SERVED if f"`{start.replace('X', '{id}')}`" not in text] == []
