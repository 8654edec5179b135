"""The environment of a deployment's servers: nothing of the listener's own but how to reach the network.

Later ones win: the few passed on, the platform's, the revision's secrets, and what must be true whatever they say.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from portside.dataplane.builds.commands import minimal_environment
from portside.dataplane.builds.output import mask_credentials
from portside.dataplane.types import DesiredDeployment, DesiredRevision


@dataclass(frozen=True)
class Fixtures:
    """What is true of a server whatever its secrets say."""

    database_url: str
    port: int
    home: Path
    binaries: Path
    commit: str


def server_environment(
    deployment: DesiredDeployment, revision: DesiredRevision, fixtures: Fixtures, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the whole environment of a server of this revision (contract: names that secrets may not set)."""
    inherited = minimal_environment(environ)
    return {
        **inherited,
        **deployment.environment,
        **{secret.name: secret.value for secret in revision.secrets},
        "PATH": f"{fixtures.binaries}{os.pathsep}{inherited['PATH']}",
        "HOME": str(fixtures.home),
        "PYTHONUNBUFFERED": "1",
        "LOG_JSON": "true",
        "DATABASE_URI": fixtures.database_url,
        "POSTGRES_URI": fixtures.database_url,
        "PORT": str(fixtures.port),
        "LANGSMITH_HOST_REVISION_ID": str(revision.id),
        "LANGSMITH_LANGGRAPH_GIT_REPO": mask_credentials(revision.repo_url or ""),
        "LANGSMITH_LANGGRAPH_GIT_REF": revision.repo_ref or "",
        "LANGSMITH_LANGGRAPH_GIT_REF_SHA": fixtures.commit,
    }
