"""Tokens to push images with. There is no registry of our own: images are pushed to any other, and named by address."""

from uuid import UUID

import msgspec

from portside.control.errors import BadCombination
from portside.control.revisions import find_deployment
from portside.control.scope import Scope
from portside.control.sources import PUSHED
from portside.kernel.errors import BadRequest
from portside.kernel.spellings import canonical_source


class NoRegistry(BadRequest):
    """No image registry is configured here: push to one of your own, and name the image as an external_image."""

    code = "no_registry"


class PushTokenRequest(msgspec.Struct):
    """What a client could do with a token."""

    supports_registry_username: bool = False


async def refuse_push_token(scope: Scope, deployment_id: UUID) -> None:
    """Say why there is no token. Raises DeploymentNotFound, BadCombination for another source, and NoRegistry."""
    row = await find_deployment(scope.db, scope, deployment_id)
    if canonical_source(row["source"]) != PUSHED:
        raise BadCombination("push token is only available for 'internal_docker' source deployments")
    raise NoRegistry
