"""The addresses of deployments: the one that a listener reports, the one that the owner requested, and the public one.

With a front, the public address of a deployment on a machine is the front's and stays the same wherever the deployment
listens. Kubernetes listeners route addresses themselves, so there the reported address is public.
"""

from typing import Protocol
from uuid import UUID

import msgspec

from portside.control.sql import sql
from portside.kernel.db import Database, Record

# Stands for the deployment's name in the pattern of public addresses.
LABEL = "*"
# Below this path of the platform's address the front serves deployments.
PREFIX = "/agents/"


class DeploymentAddress(msgspec.Struct, frozen=True):
    """A deployment on a machine, the address that its listener reported, and the one that its owner requested."""

    name: str
    direct_url: str
    requested_url: str | None


class Router(Protocol):
    """Routes requests to deployments."""

    async def refresh(self) -> None:
        """Apply changed addresses; returns when they are routed."""

    def find_objection(self, url: str) -> str | None:
        """Return why an address that an owner requests cannot be routed, or None."""


class NoRouter:
    """Stands in where there is no front."""

    async def refresh(self) -> None:
        """Do nothing."""

    def find_objection(self, url: str) -> str | None:  # noqa: ARG002 - nothing is routed
        """Return None."""
        return None


NO_ROUTER = NoRouter()


class PublicAddresses(msgspec.Struct, frozen=True):
    """The workspace whose deployments the front serves, and the pattern of their addresses, with a star for the name.

    Without a domain there is no pattern: a client gets the address under which it reached the platform itself.
    """

    workspace_id: UUID
    pattern: str | None = None

    def seen_from(self, base_url: str) -> "PublicAddresses":
        """Return the addresses for a client that reached the platform at this URL."""
        return self if self.pattern else PublicAddresses(self.workspace_id, f"{base_url}{PREFIX}{LABEL}")


async def list_addresses(db: Database, workspace_id: UUID) -> list[DeploymentAddress]:
    """List a workspace's deployments on machines that have an address, oldest first."""
    rows = await db.fetch(sql.deployment_addresses, workspace_id=workspace_id)
    return [DeploymentAddress(row["name"], row["direct_url"], row["requested_url"]) for row in rows]


def get_public_url(row: Record, addresses: PublicAddresses | None) -> str | None:
    """Return the public address of a row of `find_deployments` or `lock_deployment`."""
    requested_url: str | None = row["requested_url"]
    direct_url: str | None = row["direct_url"]
    if requested_url is not None or direct_url is None:
        return requested_url

    if addresses is None or not addresses.pattern or row["workspace_id"] != addresses.workspace_id:
        return direct_url
    if not row["is_on_machine"]:
        return direct_url

    return addresses.pattern.replace(LABEL, row["name"], 1)
