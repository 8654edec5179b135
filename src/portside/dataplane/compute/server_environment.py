"""The environment variables of the agent servers on this machine."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from portside.dataplane.builds.commands import minimal_environment
from portside.dataplane.masking import mask_credentials
from portside.kernel.aliases import EXECUTOR_VARIABLE
from portside.listener_api import DesiredDeployment, DesiredRevision

# They change how an interpreter runs, so a project's values are for its executors alone.
_INTERPRETER_PREFIXES = ("PYTHON", "LD_", "DYLD_")
_EXECUTORS = 1
_EXECUTOR_IDLE_S = 300
# What `executor_memory` leaves for the server itself, and for an executor that starts beside the others.
_SERVER_MB = 256


@dataclass(frozen=True)
class RuntimeEnvironment:
    """The variables of a server that secrets cannot override, in parts."""

    database_url: str
    port: int
    home: Path
    binaries: Sequence[str]
    commit: str
    settings: Mapping[str, str]


def server_environment(
    deployment: DesiredDeployment, revision: DesiredRevision, runtime: RuntimeEnvironment, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the whole environment of a server of this revision.

    Later entries win: the variables of `environ` about the network, the platform's variables, the revision's secrets,
    and the runtime environment.
    """
    inherited = minimal_environment(environ)
    return {
        **inherited,
        **deployment.environment,
        **revision.secret_values,
        "PATH": os.pathsep.join([*runtime.binaries, inherited["PATH"]]),
        "HOME": str(runtime.home),
        "PYTHONUNBUFFERED": "1",
        "LOG_JSON": "true",
        "DATABASE_URI": runtime.database_url,
        "POSTGRES_URI": runtime.database_url,
        "PORT": str(runtime.port),
        "LANGSMITH_HOST_REVISION_ID": str(revision.id),
        "LANGSMITH_LANGGRAPH_GIT_REPO": mask_credentials(revision.repo_url or ""),
        "LANGSMITH_LANGGRAPH_GIT_REF": revision.repo_ref or "",
        "LANGSMITH_LANGGRAPH_GIT_REF_SHA": runtime.commit,
        **runtime.settings,
    }


def executor_memory(limit_mb: int | None, executors: str | None) -> dict[str, str]:
    """Return the variable that limits the memory of each executor, so that a server stays below `limit_mb` with them.

    An executor that grows is replaced or killed before the listener would have to replace the whole server.
    """
    if limit_mb is None:
        return {}

    count = int(executors) if executors and executors.isdecimal() else _EXECUTORS
    share = max(limit_mb // 2, limit_mb - _SERVER_MB) // max(1, count)

    # Resources are in units of 2^20 bytes, as Kubernetes and container engines read them; the variable is in megabytes.
    return {"EXECUTOR_MAX_MEMORY_MB": str(max(1, share * 2**20 // 1_000_000))}


def split_environment(
    environment: Mapping[str, str], project: Mapping[str, str], overrides: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a server that runs from the platform's own environment, with graphs in executors.

    `project` has the variables that the project gave, and `own` those that it cannot override. Variables for
    interpreters get a prefix, which the server removes for its executors.
    """
    interpreter_variables = {name: value for name, value in project.items() if name.startswith(_INTERPRETER_PREFIXES)}
    return {
        "EXECUTORS": str(_EXECUTORS),
        "EXECUTOR_IDLE_SECS": str(_EXECUTOR_IDLE_S),
        **{name: value for name, value in environment.items() if name not in interpreter_variables},
        **{f"{EXECUTOR_VARIABLE}{name}": value for name, value in interpreter_variables.items()},
        "PYTHONUNBUFFERED": "1",
        **overrides,
    }
