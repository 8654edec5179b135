"""Fetching images and pinning revisions to them: a tag may move, a revision that is served again must not.

Which revision is pinned to which image id is kept in the deployment's folder, together with whether the image came to
this machine for the deployment's sake and goes with it.
"""

import asyncio
from pathlib import Path
from uuid import UUID

import msgspec

from portside.dataplane.compute.containers import commands
from portside.dataplane.compute.containers.runtime import CommandFailed, Runtime
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.types import DesiredRevision
from portside.kernel.files import write_private

_FILE = "images.json"


class Pin(msgspec.Struct, frozen=True):
    """The image that a revision is pinned to."""

    image: str
    id: str
    was_pulled: bool


class Images:
    """The images of one deployment."""

    def __init__(self, folder: Path, pull_timeout_s: float) -> None:
        self._file, self._pull_timeout_s = folder / _FILE, pull_timeout_s
        known = self._file.read_bytes() if self._file.exists() else b"{}"
        self._pins = msgspec.json.decode(known, type=dict[UUID, Pin])

    @property
    def is_empty(self) -> bool:
        """Whether the deployment never had an image."""
        return not self._pins

    async def pin(self, runtime: Runtime, revision: DesiredRevision, log: RevisionLog) -> str:
        """Return the id of a revision's image, which is on this machine then. Raises DeployFailed."""
        served_before = revision.built_from if revision.built_from in self._pins else revision.id
        pin = self._pins.get(served_before)
        if pin is None or await _id_of(runtime, pin.id) is None:
            pin = await self._fetch(runtime, revision.image_uri or "", log)
        if self._pins.get(revision.id) != pin:
            self._pins[revision.id] = pin
            await asyncio.to_thread(write_private, self._file, msgspec.json.encode(self._pins).decode())
        return pin.id

    async def discard(self, runtime: Runtime) -> None:
        """Remove what was pulled for the deployment, but for what others use."""
        pulled = [pin for pin in self._pins.values() if pin.was_pulled]
        for image in [*{pin.image for pin in pulled}, *{pin.id for pin in pulled}]:
            try:
                await runtime.run(commands.remove_image(image))
            except CommandFailed:
                continue  # Gone with its name, or used by others, or known by another name too: it stays.

    async def _fetch(self, runtime: Runtime, image: str, log: RevisionLog) -> Pin:
        pull = commands.pull(runtime.confinement.kind, image)
        present = await _id_of(runtime, image)
        if present is not None and not commands.has_registry(image):
            log.add(f"Using the image {image} of this machine, {present}")
            return Pin(image, present, was_pulled=False)
        log.add(f"Pulling {image}")
        try:
            await runtime.run(pull, within_s=self._pull_timeout_s)
        except CommandFailed as exc:
            if present is None:
                raise DeployFailed(f"the image {image} cannot be pulled: {exc}") from exc
            log.add(f"It cannot be pulled; the one on this machine is used. {exc}", "WARNING")
        found = await _id_of(runtime, image)
        if found is None:
            raise DeployFailed(f"the image {image} was pulled but is not there")
        log.add(f"The image is {found}")
        return Pin(image, found, was_pulled=present is None)


async def _id_of(runtime: Runtime, image: str) -> str | None:
    try:
        return await runtime.run(commands.image_id(image)) or None
    except CommandFailed:
        return None
