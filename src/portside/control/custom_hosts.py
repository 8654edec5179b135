"""Which addresses owners may request by `custom_url` for deployments on a cluster.

The listener makes an Ingress for the host, and the cluster's controller serves whoever has one. So an owner could take
over a name of the platform, of another deployment or of any other service. Only hosts that the operator allows may be
requested, each by one deployment.
"""

import re
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

import msgspec

from portside.kernel.settings import split_names

_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})+", re.ASCII)
_MAX_HOST_LENGTH = 253

# Nothing that a controller reads as a pattern, a variable or an encoded character, and no segment of dots alone.
_PATH = re.compile(r"(/(?!\.+(/|$))[A-Za-z0-9._-]{1,63}){0,3}/?", re.ASCII)


class CustomHosts(msgspec.Struct, frozen=True):
    """The hosts that owners may request: names, and `*.` before a domain for all names below it."""

    allowed: tuple[str, ...] = ()
    platform_hosts: frozenset[str] = frozenset()

    def find_objection(self, url: str) -> str | None:
        """Return why an owner may not request an address on a cluster, or None."""
        host = read_host(url)
        if not _HOST.fullmatch(host) or len(host) > _MAX_HOST_LENGTH or host.replace(".", "").isdecimal():
            return "must have a host name, and not an IP address"
        if not _PATH.fullmatch(urlsplit(url).path):
            return "must have a path of at most three segments of letters, digits, dots, dashes and underscores"
        if host in self.platform_hosts:
            return "must not have the host name of the platform"

        if not any(_matches(host, pattern) for pattern in self.allowed):
            return (
                f"has the host {host}, which no deployment on a cluster may have; leave it out, or have an operator of "
                "the platform allow it by CUSTOM_HOSTS"
            )

        return None

    def excluding(self, hosts: Collection[str]) -> "CustomHosts":
        """Return the same with further hosts of the platform, which nobody may request."""
        return CustomHosts(self.allowed, self.platform_hosts | frozenset(hosts))


NO_CUSTOM_HOSTS = CustomHosts()


def read_host(url: str) -> str:
    """Return the host of an address in lower case, "" if it has none: a client may send any Host header."""
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def parse_custom_hosts(text: str, platform_hosts: Iterable[str]) -> CustomHosts:
    """Read the value of the setting: names and patterns, separated by commas."""
    return CustomHosts(tuple(split_names(text.lower())), frozenset(platform_hosts))


def _matches(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
