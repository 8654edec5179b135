"""Lets HTTP clients share what they read of the certificates of authorities: 30 ms for each of thousands of clients."""

import os
from functools import cache
from typing import Any

import httpx
import httpx2


def share() -> None:
    """Let the clients of this process, and of those that are forked from it, read the certificates once."""
    _share(httpx._transports.default)
    _share(httpx2._transports.default)
    # Clients of Kubernetes call it by this name.
    _share(httpx2)


def _share(module: Any) -> None:
    create = module.create_ssl_context

    @cache
    def create_once(_certificates: tuple[str | None, ...], **options: Any) -> Any:
        return create(**options)

    def create_shared(**options: Any) -> Any:
        certificates = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        return create_once(certificates, **options)

    module.create_ssl_context = create_shared
