"""The environment of a container: the platform's variables, the revision's secrets, and what is true in spite of them.

Nothing of the listener's own environment is in it.
"""

from portside.dataplane.compute.containers.commands import SERVER_PORT
from portside.dataplane.compute.containers.passages import Passages
from portside.dataplane.compute.containers.runtime import Runtime
from portside.dataplane.types import DesiredDeployment, DesiredRevision


async def container_environment(
    deployment: DesiredDeployment, revision: DesiredRevision, database_url: str, runtime: Runtime, passages: Passages
) -> dict[str, str]:
    """Return the variables of a revision's containers. Raises DeployFailed."""

    async def through(url: str) -> str:
        return await passages.through(url, runtime.host, runtime.gateway)

    database = await through(database_url)
    return {
        # The only place that is surely writable; an image whose programs need another sets it in its command.
        **({"HOME": "/tmp"} if runtime.confinement.is_read_only else {}),  # noqa: S108 - a file system of its own
        **{name: await through(value) for name, value in deployment.environment.items()},
        **{secret.name: secret.value for secret in revision.secrets},
        "PYTHONUNBUFFERED": "1",
        "LOG_JSON": "true",
        "DATABASE_URI": database,
        "POSTGRES_URI": database,
        "PORT": str(SERVER_PORT),
        # All addresses of the container, whose port is published on this machine's loopback interface only.
        "GRAPH_SERVER_HOST": "0.0.0.0",  # noqa: S104
        "LANGSMITH_HOST_REVISION_ID": str(revision.id),
    }
