"""Which addresses are of this machine alone; every other module asks here.

Whoever connects from a loopback address needs no key, and what is sent to one needs no TLS. The rule is therefore
strict: a host is loopback only if no other machine can answer under it, or send from it, whatever the network and the
name server say.

- Loopback is all of 127.0.0.0/8, `::1` and the name `localhost`. An IPv4 address in the form of IPv6
  (`::ffff:127.0.0.1`) counts as the IPv4 address, in every version of Python.
- Wildcards (`0.0.0.0`, `::`) are not: a server that listens there answers the network.
- Other names are not, and neither is `x.localhost`: a name server may resolve them to any address. Short forms that
  only the resolver of the system reads (`127.1`) are such names.

Nothing is looked up here. What a name resolves to is checked in `outbound`, with the same rule.
"""

import ipaddress
from urllib.parse import urlsplit

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


def is_loopback(host: str | None) -> bool:
    """Whether a host is of this machine alone. An IPv6 address may have brackets; None is no host."""
    if host is None:
        return False

    try:
        return parse_ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_loopback_url(url: str) -> bool:
    """Whether the host of a URL is of this machine alone; False for a malformed one."""
    try:
        return is_loopback(urlsplit(url).hostname)
    except ValueError:
        return False


def is_wildcard(host: str | None) -> bool:
    """Whether a host stands for all addresses of a machine."""
    return host in _WILDCARDS


def to_local_url(host: str, port: int) -> str:
    """Return the URL under which programs on this machine reach a server that listens on a host."""
    name = _WILDCARDS.get(host, host)
    if ":" in name:
        name = f"[{name}]"

    return f"http://{name}:{port}"


def parse_ip_address(text: str) -> IpAddress:
    """Parse an address; an IPv6 address that embeds an IPv4 one counts as that. Raises ValueError."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped

    return address
