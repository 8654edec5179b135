"""The secrets of revisions: their allowed names, and their encryption.

A revision's secrets are encrypted together for that revision's id, so copying them to another revision means decrypting
and encrypting them again. Only the listener and callers who may change the deployment get the values.
`key_rotation.py` changes the key of all encrypted values.
"""

import re
from collections.abc import Sequence
from uuid import UUID

import msgspec

from portside.control.errors import BadCombination
from portside.control.types import SecretChanges
from portside.identity.keys import is_valid_key
from portside.kernel.codec import dump_api
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.listener_api import Secret

# Names that a secret cannot have, as LangGraph's platform reserves them. LANGSMITH_API_KEY and LANGSMITH_ENDPOINT are
# allowed, as on every self-hosted installation: they send traces elsewhere.
_SET_BY_PLATFORM = frozenset(
    {
        "DATABASE_URI",
        "DD_TRACE_PSYCOPG_ENABLED",
        "DD_TRACE_REDIS_ENABLED",
        "LANGCHAIN_API_KEY",
        "LANGCHAIN_CALLBACKS_BACKGROUND",
        "LANGCHAIN_ENDPOINT",
        "LANGCHAIN_PROJECT",
        "LANGCHAIN_TRACING_V2",
        "LANGGRAPH_AUTH_TYPE",
        "LANGGRAPH_CLOUD_LICENSE_KEY",
        "LANGGRAPH_GIT_REPO_PATH",
        "LANGSMITH_AUTH_ENDPOINT",
        "LANGSMITH_AUTH_VERIFY_TENANT_ID",
        "LANGSMITH_CONTROL_PLANE_API_KEY",
        "LANGSMITH_DEPLOYMENT_NAME",
        "LANGSMITH_HOST_PROJECT_ID",
        "LANGSMITH_HOST_PROJECT_NAME",
        "LANGSMITH_HOST_REVISION_ID",
        "LANGSMITH_LANGGRAPH_GIT_REF",
        "LANGSMITH_LANGGRAPH_GIT_REF_SHA",
        "LANGSMITH_LANGGRAPH_GIT_REPO",
        "LANGSMITH_PROJECT",
        "LANGSMITH_TENANT_ID",
        "LANGSMITH_TRACING_V2",
        "LOG_DICT_TRACEBACKS",
        "LOG_JSON",
        "LSD_DD_API_KEY",
        "LSD_DD_ENDPOINT",
        "LSD_DEPLOYMENT_TYPE",
        "LSD_ENV",
        "MOUNT_PREFIX",
        "PATH",
        "PORT",
        "POSTGRES_PASSWORD",
        "POSTGRES_URI",
        "REDIS_URI",
    }
)

RESERVED = _SET_BY_PLATFORM | {
    "GRAPH_" + name.removeprefix("LANGGRAPH_") for name in _SET_BY_PLATFORM if name.startswith("LANGGRAPH_")
}

_TRACE_ENDPOINTS = ("LANGSMITH_ENDPOINT", "LANGSMITH_RUNS_ENDPOINTS", "LANGCHAIN_RUNS_ENDPOINTS")

# A database or cache of the user's own. Process listeners do not support them and refuse them.
CLUSTER_ONLY = frozenset({"POSTGRES_URI_CUSTOM", "REDIS_URI_CUSTOM"})


MAX_VALUE_BYTES = 64 * 1024
MAX_TOTAL_BYTES = 512 * 1024
MAX_SECRETS = 500
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")


_DECODER = msgspec.json.Decoder(list[Secret])


def check_secrets(secrets: Sequence[Secret]) -> None:
    """Check names and values. Raises Invalid for an impossible one, BadCombination for reserved or repeated names."""
    for position, secret in enumerate(secrets):
        _check_shape(secret, position)

    if sum(len(secret.value.encode()) for secret in secrets) > MAX_TOTAL_BYTES:
        raise Invalid.field(["body", "secrets"], f"must be at most {MAX_TOTAL_BYTES} bytes together")

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
        raise BadCombination(f"The secret name {name} is reserved: the platform sets it. Choose another name.")
    if names.count(name) > 1:
        raise BadCombination(f"The secret {name} is given more than once; send each name once.")


def apply_changes(secrets: Sequence[Secret], changes: SecretChanges) -> list[Secret]:
    """Return the secrets with the changes. The deployment is locked, so no change of another caller is lost.

    Raises Invalid for too many secrets or an impossible one, BadCombination for reserved or repeated names.
    """
    check_secrets(changes.set)
    outdated_names = {secret.name for secret in changes.set} | set(changes.unset)
    remaining = [secret for secret in secrets if secret.name not in outdated_names]

    new_secrets = [*remaining, *changes.set]
    if len(new_secrets) > MAX_SECRETS:
        raise Invalid.field(["body", "secret_changes", "set"], f"a deployment has at most {MAX_SECRETS} secrets")

    check_secrets(new_secrets)
    return new_secrets


async def find_ignored_secrets(db: Session, secrets: Sequence[Secret]) -> list[str]:
    """Return the names of secrets that a revision's servers must not get, because its traces would be lost.

    A tracing key of another platform alone, as in many `.env` files, would go to this platform, which refuses it. With
    an endpoint the traces go elsewhere.
    """
    values = {secret.name: secret.value for secret in secrets}
    key = values.get("LANGSMITH_API_KEY")
    has_endpoint = any(values.get(name) for name in _TRACE_ENDPOINTS)
    if key is None or has_endpoint or await is_valid_key(db, key):
        return []

    return ["LANGSMITH_API_KEY"]


def encrypt_secrets(box: SecretBox, revision_id: UUID, secrets: Sequence[Secret]) -> bytes:
    """Encrypt a revision's secrets for its row."""
    return box.encrypt(dump_api(list(secrets)), str(revision_id))


def decrypt_secrets(box: SecretBox, revision_id: UUID, encrypted: bytes) -> list[Secret]:
    """Decrypt a revision's secrets."""
    return decode_secrets(box.decrypt(encrypted, str(revision_id)))


def decode_secrets(plain: bytes) -> list[Secret]:
    """Decode secrets that were decrypted already. Raises MsgspecError for anything else."""
    return _DECODER.decode(plain)


def hide_values(secrets: Sequence[Secret]) -> list[Secret]:
    """Return the secrets with empty values, for callers who may not see the values."""
    return [Secret(secret.name, "") for secret in secrets]
