"""Encryption handlers in an executor encrypt and decrypt as they would in the server's own process."""

import warnings
from typing import Any

import pytest
from langgraph_sdk import Encryption

from portside.agent.executors.handlers_executor import RemoteEncryption
from portside.agent.sql.declarations import ModelField
from portside.executor import messages
from portside.executor.encryption_handlers import EncryptionHandlers
from portside.executor.handlers import Users, _encrypt
from portside.executor.link import decode, encode

pytestmark = pytest.mark.needs("langgraph-sdk", "0.2.14")
METADATA = ModelField("thread", "metadata")
VALUES = ModelField("checkpoint", "values")
TENANT = {"tenant": "acme"}

with warnings.catch_warnings():
    # The SDK calls its interface a beta.
    warnings.simplefilter("ignore")
    encryption = Encryption()


def mark(ctx: Any) -> str:
    return f"{ctx.metadata['tenant']} {ctx.model}.{ctx.field}: "


@encryption.context
async def derive(user: Any, ctx: Any) -> dict[str, Any]:
    return {"tenant": ctx.metadata["tenant"], "is_nobody": user is None}


@encryption.encrypt.json
async def encrypt_json(ctx: Any, data: dict[str, Any]) -> dict[str, Any]:
    return {key: mark(ctx) + value for key, value in data.items()}


@encryption.decrypt.json
async def decrypt_json(ctx: Any, data: dict[str, Any]) -> dict[str, Any]:
    return {key: value.removeprefix(mark(ctx)) for key, value in data.items()}


@encryption.encrypt.blob
async def encrypt_blob(ctx: Any, data: bytes) -> bytes:
    return mark(ctx).encode() + data


@encryption.decrypt.blob
async def decrypt_blob(ctx: Any, data: bytes) -> bytes:
    return data.removeprefix(mark(ctx).encode())


class Link:
    """The handlers' executor, without a process: what is asked arrives as over a link."""

    def __init__(self) -> None:
        self.handlers = EncryptionHandlers(encryption, "encryption")

    async def call_with_retries(self, method: str, body: Any, _within_s: float) -> Any:
        assert method == messages.ENCRYPTION
        return decode(encode(await _encrypt(self.handlers, Users(), decode(encode(body)))))


@pytest.fixture
async def remote() -> RemoteEncryption:
    return RemoteEncryption(Link(), {"does_json": True, "does_blobs": True})  # type: ignore[arg-type]


async def test_documents_are_encrypted_for_their_field_and_context(remote: RemoteEncryption) -> None:
    encrypted = await remote.encrypt_json(METADATA, TENANT, {"title": "secret"})
    assert encrypted == {"title": "acme thread.metadata: secret"}

    decrypted = await remote.decrypt_json(METADATA, TENANT, encrypted)
    assert (decrypted.plain, decrypted.replacement) == ({"title": "secret"}, None)


async def test_blobs_are_encrypted_for_their_field_and_context(remote: RemoteEncryption) -> None:
    encrypted = await remote.encrypt_blob(VALUES, TENANT, b"secret \x00\xff")
    assert encrypted == b"acme checkpoint.values: secret \x00\xff"

    decrypted = await remote.decrypt_blob(VALUES, TENANT, encrypted)
    assert (decrypted.plain, decrypted.replacement) == (b"secret \x00\xff", None)


async def test_the_context_of_a_request_is_derived_by_the_handler(remote: RemoteEncryption) -> None:
    assert await remote.derive_context(None, {**TENANT, "more": 1}) == {"tenant": "acme", "is_nobody": True}
