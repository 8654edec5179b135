import pytest

from portside.kernel.local_addresses import is_loopback, is_loopback_url, is_wildcard, parse_ip_address, to_local_url


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("[::1]", True),
        ("0:0:0:0:0:0:0:1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:7f00:2", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:0.0.0.0", False),
        ("::ffff:192.0.2.1", False),
        ("128.0.0.1", False),
        ("10.0.0.1", False),
        ("192.0.2.1", False),
        ("fe80::1", False),
        ("127.1", False),
        ("2130706433", False),
        ("localhost.example", False),
        ("agent.localhost", False),
        ("127.0.0.1.example", False),
        ("portside.example", False),
        ("", False),
        (None, False),
    ],
)
def test_loopback_is_this_machine_alone(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8700", True),
        ("https://[::1]/x", True),
        ("http://LOCALHOST:1", True),
        ("http://user@127.0.0.2", True),
        ("http://127.0.0.1@portside.example", False),
        ("http://0.0.0.0:8700", False),
        ("http://portside.example", False),
        ("http://[::1", False),
        ("127.0.0.1", False),
        ("null", False),
        ("", False),
    ],
)
def test_host_of_a_url_decides(url, expected):
    assert is_loopback_url(url) is expected


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8700"),
        ("0.0.0.0", "http://127.0.0.1:8700"),
        ("::", "http://[::1]:8700"),
        ("::1", "http://[::1]:8700"),
        ("192.0.2.1", "http://192.0.2.1:8700"),
        ("localhost", "http://localhost:8700"),
    ],
)
def test_server_is_reached_on_its_own_machine(host, url):
    assert to_local_url(host, 8700) == url


def test_wildcards_are_known_by_their_usual_form():
    assert is_wildcard("0.0.0.0")
    assert is_wildcard("::")
    assert not is_wildcard("127.0.0.1")
    assert not is_wildcard(None)


@pytest.mark.parametrize(("text", "expected"), [("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1", "fe80::1")])
def test_embedded_address_counts(text, expected):
    assert str(parse_ip_address(text)) == expected
