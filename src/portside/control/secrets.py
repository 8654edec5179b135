"""The secrets of revisions: which names are allowed, and how they are kept.

A revision's secrets are sealed together, for that revision's id: copied to another revision they must be opened and
sealed again. Values leave this module only for the listener and for callers who may change the deployment.
"""

import re
from collections.abc import Sequence
from uuid import UUID

import msgspec

from portside.control.errors import BadCombination
from portside.control.reserved_names import RESERVED
from portside.control.types.deployments import Secret
from portside.kernel.codec import dump_api
from portside.kernel.crypto import SecretBox
from portside.kernel.errors import Invalid

MAX_VALUE_BYTES = 64 * 1024
MAX_TOTAL_BYTES = 512 * 1024
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")


_decoder = msgspec.json.Decoder(list[Secret])


def check_secrets(secrets: Sequence[Secret]) -> None:
    """Raises Invalid for what cannot be an environment variable, BadCombination for reserved or repeated names."""
    for position, secret in enumerate(secrets):
        _check_shape(secret, position)
    if sum(len(secret.value.encode()) for secret in secrets) > MAX_TOTAL_BYTES:
        raise Invalid.field(["body", "secrets"], f"are larger than {MAX_TOTAL_BYTES} bytes together")
    names = [secret.name for secret in secrets]
    for name in names:
        _check_name(name, names)


def _check_shape(secret: Secret, position: int) -> None:
    if not _NAME.fullmatch(secret.name):
        raise Invalid.field(
            ["body", "secrets", position, "name"],
            "must be the name of an environment variable: letters, digits and _, not a digit first, at most 256",
        )
    if "\0" in secret.value or len(secret.value.encode()) > MAX_VALUE_BYTES:
        raise Invalid.field(
            ["body", "secrets", position, "value"], f"must be at most {MAX_VALUE_BYTES} bytes without NUL"
        )


def _check_name(name: str, names: list[str]) -> None:
    if name in RESERVED:
        raise BadCombination(f"The secret name {name} is reserved: the platform sets it itself.")
    if names.count(name) > 1:
        raise BadCombination(f"The secret {name} is given more than once.")


def seal_secrets(box: SecretBox, revision_id: UUID, secrets: Sequence[Secret]) -> bytes:
    """Encrypt a revision's secrets for its row."""
    return box.seal(dump_api(list(secrets)), str(revision_id))


def open_secrets(box: SecretBox, revision_id: UUID, sealed: bytes) -> list[Secret]:
    """Decrypt a revision's secrets."""
    return _decoder.decode(box.open(sealed, str(revision_id)))


def without_values(secrets: Sequence[Secret]) -> list[Secret]:
    """Return the names alone, for callers who may not see values."""
    return [Secret(secret.name, "") for secret in secrets]
