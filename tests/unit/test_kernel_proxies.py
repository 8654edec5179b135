"""Headers of trusted proxies, and redirects below a prefix: only addresses of the same host that lack it get it."""

from typing import Any

import pytest

from portside.kernel.http.proxies import ForwardedHeaders, get_prefix, with_prefix


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/", "/p/"),
        ("/x?a=/b#c", "/p/x?a=/b#c"),
        ("/px", "/p/px"),
        ("/p", "/p"),
        ("/p/x", "/p/x"),
        ("http://h:1", "http://h:1/p/"),
        ("https://h:1/x", "https://h:1/p/x"),
        ("http://h:1/p/x", "http://h:1/p/x"),
        ("http://h/x", "http://h/x"),
        ("http://h:1.example/x", "http://h:1.example/x"),
        ("//h2/x", "//h2/x"),
        ("/\\h2/x", "/\\h2/x"),
        ("x/y", "x/y"),
        ("?a", "?a"),
        ("", ""),
        ("http://[h/x", "http://[h/x"),
        ("ftp://h:1/x", "ftp://h:1/x"),
        ("mailto:a@h", "mailto:a@h"),
    ],
)
def test_prefix_is_added_where_it_is_missing(location: str, expected: str):
    assert with_prefix(location, "/p", "h:1") == expected


@pytest.mark.parametrize(
    ("peer", "seen"),
    [("10.0.0.1", "1.2.3.4"), ("::ffff:10.0.0.1", "1.2.3.4"), ("::ffff:11.0.0.1", "11.0.0.1"), ("fe80::1", "fe80::1")],
)
async def test_addresses_of_trusted_proxies_are_replaced(peer: str, seen: str):
    """Also on a socket for both families, where a proxy with an IPv4 address has an IPv6 address that embeds it."""
    found: list[str] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        found.append(scope["client"][0])

    scope = {"type": "http", "client": (peer, 1), "headers": [(b"x-forwarded-for", b"1.2.3.4")]}
    await ForwardedHeaders(app, "10.0.0.0/8")(scope, None, None)
    assert found == [seen]


@pytest.mark.parametrize(
    ("peer", "prefix", "noted"),
    [
        ("10.0.0.1", "/agents/a", "/agents/a"),
        ("11.0.0.1", "/agents/a", ""),
        ("10.0.0.1", "/noauthors", "/noauthors"),
        ("10.0.0.1", "/noauth", ""),
        ("10.0.0.1", "/noauth/x", ""),
    ],
)
async def test_prefix_comes_from_trusted_proxies_and_is_not_that_of_the_server_itself(
    peer: str, prefix: str, noted: str
):
    found: list[str] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        found.append(get_prefix(scope))

    scope = {"type": "http", "client": (peer, 1), "headers": [(b"x-forwarded-prefix", prefix.encode())]}
    await ForwardedHeaders(app, "10.0.0.0/8")(scope, None, None)
    assert found == [noted]
