"""How executors on other machines and their orchestrator authenticate each other: keys, certificates or both."""

import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from portside.agent.settings import AgentSettings
from portside.kernel.errors import UserMistake
from portside.kernel.local_addresses import is_loopback
from portside.kernel.settings import split_names

MIN_KEY_BYTES = 32


@dataclass(frozen=True)
class PeerCredentials:
    """How peers authenticate each other: keys, certificates or both; without either only on this machine."""

    keys: tuple[bytes, ...] = ()
    """Any of them is accepted; the first is sent."""
    certificate: bytes | None = None
    private_key: bytes | None = None
    ca_certificates: bytes | None = None
    """The CA certificates that verify those of peers."""

    def listen(self, server: Any, host: str, port: int) -> int:
        """Let a gRPC server listen, and return the port. Raises UserMistake if anybody on the network could connect."""
        self._check(host, is_server=True)
        if self.ca_certificates is not None and self.certificate is None:
            raise UserMistake("CORE_API_CA needs CORE_API_CERTIFICATE and CORE_API_PRIVATE_KEY of the orchestrator")

        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self.certificate is None:
            return int(server.add_insecure_port(address))

        pair = [(self.private_key, self.certificate)]
        secured = grpc.ssl_server_credentials(
            pair, self.ca_certificates, require_client_auth=self.ca_certificates is not None
        )

        return int(server.add_secure_port(address, secured))

    def connect(self, target: str, options: tuple[tuple[str, Any], ...]) -> Any:
        """Return a channel to an orchestrator. Raises UserMistake as `check_target` does."""
        self.check_target(target)
        if self.ca_certificates is None:
            return grpc.aio.insecure_channel(target, options)

        secured = grpc.ssl_channel_credentials(self.ca_certificates, self.private_key, self.certificate)
        return grpc.aio.secure_channel(target, secured, options)

    def check_target(self, target: str) -> None:
        """Raise UserMistake if the address is malformed, or if others on the network could read what is sent to it."""
        host, _, port = target.rpartition(":")
        if not (host and port.isdecimal()):
            raise UserMistake(f"--core-api: {target!r} is not the address of an orchestrator; set HOST:PORT")

        self._check(host.strip("[]"), is_server=False)

        if self.certificate is not None and self.ca_certificates is None:
            raise UserMistake(
                "CORE_API_CERTIFICATE needs CORE_API_CA: the CA certificates that verify the orchestrator's certificate"
            )

    def _check(self, host: str, *, is_server: bool) -> None:
        has_tls = self.certificate is not None and self.ca_certificates is not None
        if not (self.keys or has_tls or is_loopback(host)):
            purpose = "listen for executors on" if is_server else "connect to an orchestrator at"
            raise UserMistake(
                f"refusing to {purpose} {host} without CORE_API_KEY or mutual TLS: set CORE_API_KEY on both sides, or "
                "CORE_API_CERTIFICATE, CORE_API_PRIVATE_KEY and CORE_API_CA"
            )

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What an executor sends with its request for a session."""
        return (("authorization", f"Bearer {self.keys[0].decode()}"),) if self.keys else ()

    def admit(self, metadata: Any) -> bool:
        """Whether a request for a session has one of the keys. TLS has checked the certificates before."""
        if not self.keys:
            return True

        header = next((value for name, value in metadata or () if name == "authorization"), "")
        data = header.encode() if isinstance(header, str) else header

        # Compare with all keys, so that the time does not reveal which one was close.
        matches = [hmac.compare_digest(data, b"Bearer " + key) for key in self.keys]
        return any(matches)


def read_credentials(settings: AgentSettings) -> PeerCredentials:
    """Read the keys and certificates that the settings name. Raises UserMistake."""
    keys = tuple(key.encode() for key in split_names(settings.core_api_key))
    if any(len(key) < MIN_KEY_BYTES or not key.isascii() for key in keys):
        raise UserMistake(f"setting CORE_API_KEY: use keys of at least {MIN_KEY_BYTES} ASCII characters")

    certificate = _read_file("CORE_API_CERTIFICATE", settings.core_api_certificate)
    private_key = _read_file("CORE_API_PRIVATE_KEY", settings.core_api_private_key)
    if (certificate is None) != (private_key is None):
        raise UserMistake("CORE_API_CERTIFICATE and CORE_API_PRIVATE_KEY belong together: set both or neither")

    ca_certificates = _read_file("CORE_API_CA", settings.core_api_ca)
    return PeerCredentials(keys=keys, certificate=certificate, private_key=private_key, ca_certificates=ca_certificates)


def _read_file(name: str, path: str | None) -> bytes | None:
    if path is None:
        return None

    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise UserMistake(f"setting {name}: {path} cannot be read: {exc.strerror}") from exc
