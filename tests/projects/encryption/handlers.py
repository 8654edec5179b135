"""A project's own encryption: a cipher of no strength, and handlers that use it as the SDK's documentation does."""

import base64
import json
import warnings
from typing import Any

from langgraph_sdk import EncryptionContext
from langgraph_sdk.encryption.types import DecryptResult

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langgraph_sdk import Encryption

    encryption = Encryption()

CLEAR = {"tenant", "owner", "stream_mode", "durability"}
OLD = "enc:"
NEW = "new:"


def turn(data: bytes) -> bytes:
    return bytes(byte ^ 0x5A for byte in data)


def encrypt_text(value: Any, prefix: str) -> str:
    return prefix + base64.b64encode(turn(json.dumps(value).encode())).decode()


def decrypt_text(text: str) -> Any:
    return json.loads(turn(base64.b64decode(text[4:])))


@encryption.encrypt.json
async def encrypt_json(ctx: EncryptionContext, data: dict[str, Any]) -> dict[str, Any]:
    if ctx.metadata.get("fail"):
        raise RuntimeError("no key service")

    prefix = OLD if ctx.metadata.get("key") == "old" else NEW
    return {key: value if key in CLEAR or value is None else encrypt_text(value, prefix) for key, value in data.items()}


@encryption.decrypt.json
async def decrypt_json(ctx: EncryptionContext, data: dict[str, Any]) -> DecryptResult[dict[str, Any]]:
    plain = {}
    replacement = {}
    for key, value in data.items():
        is_encrypted = isinstance(value, str) and value.startswith((OLD, NEW))
        plain[key] = decrypt_text(value) if is_encrypted else value
        replacement[key] = encrypt_text(plain[key], NEW) if is_encrypted and value.startswith(OLD) else value

    return DecryptResult(plain, replacement if replacement != data else None)


@encryption.encrypt.blob
async def encrypt_blob(ctx: EncryptionContext, data: bytes) -> bytes:
    return (b"old:" if ctx.metadata.get("key") == "old" else b"new:") + turn(data)


@encryption.decrypt.blob
async def decrypt_blob(ctx: EncryptionContext, data: bytes) -> DecryptResult[bytes]:
    plain = turn(data[4:])
    return DecryptResult(plain, b"new:" + data[4:] if data.startswith(b"old:") else None)


@encryption.context
async def add_context(user: Any, ctx: EncryptionContext) -> dict[str, Any]:
    return {**ctx.metadata, "from": "handler"}
