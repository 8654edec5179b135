"""The images of a deployment: to which a revision is pinned, which are pulled, and which are removed again."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from portside.dataplane.compute.containers.commands import has_registry, is_local, pull
from portside.dataplane.compute.containers.images import ImageStore
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.listener_api import DesiredRevision
from tests.container_runtime import ContainerRuntime
from tests.desired import build_desired_revision

HELLO = "registry.example/hello:1"


def revision(number: int, image: str = HELLO, **fields: Any) -> DesiredRevision:
    """A revision whose id grows with its number."""
    return build_desired_revision(
        id=UUID(int=number), number=number, source="external_image", image_uri=image, **fields
    )


class Harness:
    """The images of one deployment on a machine whose registry has one image."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime = ContainerRuntime()
        self.runtime.registry[HELLO] = "id-1"
        self.images = ImageStore(folder, pull_timeout_s=1)
        self.lines: list[str] = []

    async def pin(self, number: int, image: str = HELLO, **fields: Any) -> str:
        log = RevisionLog(self._ship)
        try:
            return await self.images.pin(self.runtime, revision(number, image, **fields), log)  # type: ignore[arg-type]
        finally:
            await log.close()

    async def _ship(self, entries: Any) -> None:
        self.lines += [entry.message for entry in entries]

    async def remove_unused(self, *numbers: int) -> None:
        await self.images.remove_unused(self.runtime, {UUID(int=number) for number in numbers})  # type: ignore[arg-type]

    async def remove_pulled(self) -> None:
        await self.images.remove_pulled(self.runtime)  # type: ignore[arg-type]

    def restart(self) -> None:
        self.images = ImageStore(self.folder, pull_timeout_s=1)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


async def test_a_revision_keeps_its_image_when_the_tag_moves(harness: Harness) -> None:
    assert await harness.pin(1) == "id-1"
    harness.runtime.registry[HELLO] = "id-2"
    harness.restart()

    assert await harness.pin(1) == "id-1"
    assert await harness.pin(2) == "id-2", "a new revision gets what the tag names now"
    assert await harness.pin(3, built_from=UUID(int=1)) == "id-1", "a revision that repeats another one has its image"
    assert harness.runtime.pulled == [HELLO, HELLO]


async def test_a_pinned_image_that_is_gone_is_pulled_again(harness: Harness) -> None:
    await harness.pin(1)
    await harness.runtime.run(["image", "rm", HELLO])

    assert await harness.pin(1) == "id-1"
    assert harness.runtime.pulled == [HELLO, HELLO]


async def test_an_image_of_this_machine_needs_no_registry_and_is_never_removed(harness: Harness) -> None:
    harness.runtime.add_image("hello:1", "id-of-this-machine")
    assert await harness.pin(1, "hello:1") == "id-of-this-machine"
    assert harness.runtime.pulled == []

    await harness.pin(2)
    await harness.remove_unused(2)
    await harness.remove_pulled()
    assert harness.runtime.images == {"hello:1": "id-of-this-machine"}


async def test_the_image_on_this_machine_is_used_while_its_registry_is_away(harness: Harness) -> None:
    harness.runtime.registry.clear()
    with pytest.raises(DeployFailed, match=f"the image {HELLO} cannot be pulled: .*the registry does not have it"):
        await harness.pin(1)

    harness.runtime.add_image(HELLO, "id-0")
    assert await harness.pin(1) == "id-0"
    assert any("using the one on this machine" in line for line in harness.lines)

    # Somebody else pulled it.
    await harness.remove_pulled()
    assert harness.runtime.images == {HELLO: "id-0"}


async def test_pulled_images_of_replaced_revisions_are_removed(harness: Harness) -> None:
    for number in range(1, 5):
        harness.runtime.registry[f"registry.example/hello:{number}"] = f"id-{number}"
        await harness.pin(number, f"registry.example/hello:{number}")

    await harness.remove_unused(2, 3)
    assert set(harness.runtime.images.values()) == {"id-2", "id-3", "id-4"}, "the fourth is being rolled out"

    harness.restart()
    await harness.remove_unused(3, 4)
    assert set(harness.runtime.images.values()) == {"id-3", "id-4"}

    await harness.remove_pulled()
    assert harness.runtime.images == {}


async def test_images_that_a_tag_named_before_are_removed(harness: Harness) -> None:
    for number in range(1, 4):
        harness.runtime.registry[HELLO] = f"id-{number}"
        await harness.pin(number)

    await harness.remove_unused(3)
    assert harness.runtime.ids == {"id-3"}

    await harness.remove_pulled()
    assert harness.runtime.ids == set()


async def test_an_image_that_a_container_uses_is_removed_later(harness: Harness) -> None:
    await harness.pin(1)
    await harness.runtime.run(["run", "--name", "drains", "id-1"])
    harness.runtime.registry[HELLO] = "id-2"
    await harness.pin(2)

    await harness.remove_unused(2)
    assert await harness.runtime.run(["image", "inspect", "--format", "{{.Id}}", "id-1"]) == "id-1"

    del harness.runtime.containers["drains"]
    await harness.remove_unused(2)
    assert harness.runtime.images == {HELLO: "id-2"}
    assert "id-1" not in harness.runtime.ids


async def test_an_image_that_a_kept_revision_shares_stays_and_is_removed_with_the_deployment(harness: Harness) -> None:
    await harness.pin(1)
    await harness.pin(2)  # finds the image here, where the first one pulled it

    await harness.remove_unused(2)
    assert harness.runtime.images == {HELLO: "id-1"}

    await harness.remove_pulled()
    assert harness.runtime.images == {}


async def test_an_image_with_another_name_belongs_to_somebody_else(harness: Harness) -> None:
    await harness.pin(1)
    harness.runtime.add_image("somebody/elses:1", "id-1")
    harness.runtime.registry[HELLO] = "id-2"
    await harness.pin(2)

    await harness.remove_unused(2)
    assert harness.runtime.images == {"somebody/elses:1": "id-1", HELLO: "id-2"}

    harness.runtime.add_image("somebody/elses:2", "id-2")
    await harness.remove_pulled()
    assert harness.runtime.images == {"somebody/elses:1": "id-1", "somebody/elses:2": "id-2"}


@pytest.mark.parametrize(
    ("image", "has", "is_here"),
    [
        ("hello:1", False, False),
        ("team/hello:1", False, False),
        ("localhost/hello:1", False, True),
        ("localhost:5000/hello:1", True, True),
        ("127.0.0.1:5000/hello", True, True),
        ("registry.example/hello:1", True, False),
        ("registry:5000/hello", True, False),
    ],
)
def test_registries_are_told_from_names(image: str, *, has: bool, is_here: bool) -> None:
    assert (has_registry(image), is_local(image)) == (has, is_here)

    # Only a registry of this machine may be asked without TLS.
    assert ("--tls-verify=false" in pull("podman", image)) is is_here
    assert "--tls-verify=false" not in pull("docker", image)


@pytest.mark.parametrize("image", ["", "--help", "hello:1 --privileged", "hello\n"])
def test_an_image_is_never_an_option_of_the_command(image: str) -> None:
    with pytest.raises(DeployFailed, match="is not a valid image name"):
        pull("podman", image)
