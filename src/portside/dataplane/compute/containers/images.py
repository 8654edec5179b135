"""The images of one deployment.

A revision is pinned to an image id, because a tag may move while a revision that is served again must not change. The
pins are kept in the deployment's folder, together with whether the image was pulled for this deployment and is removed
with it, or when its revision is neither the active one nor the one before.
"""

import asyncio
import contextlib
from pathlib import Path
from uuid import UUID

import msgspec

from portside.dataplane.compute.containers import commands
from portside.dataplane.compute.containers.runtime import Runtime, RuntimeCommandFailed
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.kernel.files import write_private
from portside.kernel.logs import get_logger
from portside.listener_api import DesiredRevision

log = get_logger(__name__)
_PINS_FILE = "images.json"


class ImagePin(msgspec.Struct, frozen=True):
    """The image that a revision is pinned to."""

    image: str
    id: str
    was_pulled: bool


class ImageStore:
    """The images of one deployment."""

    def __init__(self, folder: Path, pull_timeout_s: float) -> None:
        self._file = folder / _PINS_FILE
        self._pull_timeout_s = pull_timeout_s
        self._pins = _read_pins(self._file)

    @property
    def is_empty(self) -> bool:
        """Whether the deployment never had an image."""
        return not self._pins

    async def pin(self, runtime: Runtime, revision: DesiredRevision, log: RevisionLog) -> str:
        """Return the id of a revision's image after making sure that it is on this machine. Raises DeployFailed."""
        pinned_id = revision.built_from if revision.built_from in self._pins else revision.id
        pin = self._pins.get(pinned_id)
        if pin is None or await _find_image_id(runtime, pin.id) is None:
            pin = await self._pull(runtime, revision.image_uri or "", log)

        if self._pins.get(revision.id) != pin:
            self._pins[revision.id] = pin
            await asyncio.to_thread(self._save)

        return pin.id

    async def remove_unused(self, runtime: Runtime, used_ids: set[UUID]) -> None:
        """Forget the images of earlier revisions, and remove those that were pulled and that no container uses.

        An image that a container still uses is tried again with the next call. Ids of revisions grow with time: one
        that is newer than all that are kept is being rolled out.
        """
        earlier = [revision_id for revision_id in self._pins if used_ids and revision_id < max(used_ids)]
        for revision_id in set(earlier) - used_ids:
            pin = self._pins[revision_id]
            sharers = [other for other in used_ids & self._pins.keys() if self._pins[other].id == pin.id]
            if sharers and pin.was_pulled:
                # It was pulled for this deployment all the same.
                heir = sharers[0]
                self._pins[heir] = msgspec.structs.replace(self._pins[heir], was_pulled=True)

            if sharers or not pin.was_pulled or await _remove_image(runtime, pin):
                del self._pins[revision_id]

        await asyncio.to_thread(self._save)

    def _save(self) -> None:
        write_private(self._file, msgspec.json.encode(self._pins).decode())

    async def remove_pulled(self, runtime: Runtime) -> None:
        """Remove the images that were pulled for the deployment, except those that others use."""
        pulled = [pin for pin in self._pins.values() if pin.was_pulled]
        # Both fail for an image that is gone already or that a container uses.
        for name in {pin.image for pin in pulled}:
            with contextlib.suppress(RuntimeCommandFailed):
                await runtime.run(commands.remove_image(name))

        # Left are images whose name moved on to a newer one. An image with another name belongs to somebody else.
        for image_id in {pin.id for pin in pulled}:
            with contextlib.suppress(RuntimeCommandFailed):
                if not await runtime.run(commands.image_names(image_id)):
                    await runtime.run(commands.remove_image(image_id))

    async def _pull(self, runtime: Runtime, image: str, log: RevisionLog) -> ImagePin:
        pull = commands.pull(runtime.isolation.kind, image)
        present = await _find_image_id(runtime, image)
        if present is not None and not commands.has_registry(image):
            log.add(f"Using the image {image} of this machine, {present}")
            return ImagePin(image, present, was_pulled=False)

        log.add(f"Pulling {image}")
        try:
            await runtime.run(pull, within_s=self._pull_timeout_s)
        except RuntimeCommandFailed as exc:
            if present is None:
                raise DeployFailed(f"the image {image} cannot be pulled: {exc}") from exc
            log.add(f"The image cannot be pulled; using the one on this machine. {exc}", "WARNING")

        image_id = await _find_image_id(runtime, image)
        if image_id is None:
            raise DeployFailed(f"the image {image} was pulled, but this machine does not have it")

        log.add(f"The image is {image_id}")
        # A tag that has moved was here as well, with the image that an earlier revision pulled.
        was_pulled = present is None or self._has_pulled(present)
        return ImagePin(image, image_id, was_pulled=was_pulled)

    def _has_pulled(self, image_id: str) -> bool:
        return any(pin.id == image_id and pin.was_pulled for pin in self._pins.values())


def _read_pins(file: Path) -> dict[UUID, ImagePin]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[UUID, ImagePin])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError:
        log.exception("a deployment's file of image pins is damaged; its images are pulled again", path=str(file))
        return {}


async def _remove_image(runtime: Runtime, pin: ImagePin) -> bool:
    """Remove an image; return whether it is gone, or belongs to somebody else, who gave it another name."""
    with contextlib.suppress(RuntimeCommandFailed):
        if await runtime.run(commands.list_containers_using(pin.id)):
            return False

        # Its name may have moved on to a newer image.
        if await _find_image_id(runtime, pin.image) == pin.id:
            await runtime.run(commands.remove_image(pin.image))

    try:
        if await runtime.run(commands.image_names(pin.id)):
            return True
        await runtime.run(commands.remove_image(pin.id))
    except RuntimeCommandFailed:
        return await _find_image_id(runtime, pin.id) is None

    return True


async def _find_image_id(runtime: Runtime, image: str) -> str | None:
    try:
        return await runtime.run(commands.image_id(image)) or None
    except RuntimeCommandFailed:
        return None
