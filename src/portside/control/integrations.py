"""Git integrations. There is one, built in: plain git, which needs no installation anywhere."""

from uuid import UUID

import msgspec


class Integration(msgspec.Struct, frozen=True):
    """An installation of a git host; its id goes into `source_config.integration_id` (contract: section 3.7)."""

    id: UUID
    installation_id: int
    name: str


PLAIN_GIT = Integration(UUID("00000000-0000-4000-8000-676974000000"), 0, "git")


def list_integrations() -> list[Integration]:
    """List the integrations that deployments may name."""
    return [PLAIN_GIT]
