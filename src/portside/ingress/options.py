"""The operator's options for the front. The settings import it, so it imports nothing heavy."""

from typing import Literal

import msgspec

AgentAddresses = Literal["path", "host"]
TlsMode = Literal["acme", "internal", "files", "off"]


class FrontOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the operator. With `tls` off, another proxy ends TLS and sends everything to `port`."""

    host: str = "127.0.0.1"
    port: int = 8700
    domain: str | None = None
    agents: AgentAddresses = "path"
    tls: TlsMode = "acme"
    certificate: str | None = None
    key: str | None = None
    acme_server: str | None = None
    acme_email: str | None = None
    acme_root: str | None = None
    http_port: int = 80
    https_port: int = 443
    trusted_proxies: tuple[str, ...] = ()

    @property
    def is_public(self) -> bool:
        """Whether the front itself serves HTTPS."""
        return self.domain is not None and self.tls != "off"

    @property
    def origin(self) -> str | None:
        """The platform's public address, or None without a domain."""
        return None if self.domain is None else f"https://{self.domain}{self.port_suffix}"

    @property
    def port_suffix(self) -> str:
        """The port in public addresses, unless it is the usual one."""
        return f":{self.https_port}" if self.is_public and self.https_port != 443 else ""
