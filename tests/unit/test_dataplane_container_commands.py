"""The command line that starts a container: how the container is confined, and where its secrets go."""

from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from portside.dataplane.compute.containers.commands import ContainerPlan, Isolation, environment_file, run
from portside.dataplane.compute.containers.spec import read_spec
from portside.dataplane.failures import DeployFailed

SECRET = "the-value-of-a-secret"


def plan(isolation: Isolation, **resources: Any) -> ContainerPlan:
    return ContainerPlan(UUID(int=1), UUID(int=2), "sha256:abc", read_spec(resources), {"KEY": SECRET}, isolation)


def list_values(option: str, command: list[str]) -> list[str]:
    """Return each value that a command line gives to an option."""
    return [value for name, value in pairwise(command) if name == option]


@pytest.mark.parametrize("kind", ["podman", "docker"])
def test_a_container_has_no_rights_and_listens_on_this_machine_only(kind: str) -> None:
    command = run(plan(Isolation(kind, "bridge")), "one")

    assert list_values("--cap-drop", command) == ["all"]
    assert list_values("--security-opt", command) == ["no-new-privileges"]
    assert "--read-only" in command
    assert list_values("--publish", command) == ["127.0.0.1::8000"]
    assert list_values("--network", command) == ["bridge"]
    assert not {"--privileged", "--cap-add", "--publish-all", "--volume", "--device"} & set(command)
    assert command[-1] == "sha256:abc", "what follows the image would be its command"


def test_a_container_has_the_limits_of_its_revision() -> None:
    limited = {"cpu_limit": 1.5, "memory_limit_mb": 300}

    command = run(plan(Isolation("podman", "bridge"), **limited), "one")
    assert list_values("--cpus", command) == ["1.5"]
    assert list_values("--memory", command) == list_values("--memory-swap", command) == ["300m"]
    assert list_values("--pids-limit", command) == ["4096"]

    # A runtime that supports no limits refuses these options.
    unlimited = run(plan(Isolation("podman", "bridge", limits=frozenset()), **limited), "one")
    assert not {"--cpus", "--memory", "--memory-swap", "--pids-limit"} & set(unlimited)


def test_secrets_are_written_to_the_standard_input_and_are_not_in_the_command_line() -> None:
    started = plan(Isolation("docker", "bridge"))

    assert SECRET not in " ".join(run(started, "one"))
    assert list_values("--env-file", run(started, "one")) == ["/dev/stdin"]
    assert environment_file(started.env) == f"KEY={SECRET}\n".encode()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("KEY", "a\nOTHER=b", "'KEY' has several lines"),
        ("KEY", "a\rOTHER=b", "'KEY' has several lines"),
        ("A=1\nKEY", "a", "is not a valid name"),
        ("# KEY", "a", "is not a valid name"),
    ],
)
def test_a_variable_cannot_set_another_one(name: str, value: str, reason: str) -> None:
    with pytest.raises(DeployFailed, match=reason):
        environment_file({name: value})
