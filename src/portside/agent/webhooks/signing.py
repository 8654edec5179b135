"""Signatures by which a receiver knows our calls, in the form of Standard Webhooks (standardwebhooks.com).

HMAC-SHA256 over id, moment and body: what is sent again later, or for another run, does not fit.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from portside.kernel.errors import UserMistake

_ENCODED = "whsec_"
LEAST_BYTES = 16


def read_secret(text: str, key: str) -> bytes:
    """Return the key of a secret, which may be text or `whsec_` with base64. Raises UserMistake for a short one."""
    encoded = text.removeprefix(_ENCODED)
    try:
        secret = text.encode() if encoded == text else base64.b64decode(encoded, validate=True)
    except binascii.Error as exc:
        raise UserMistake(f"{key}: what follows whsec_ is not base64") from exc
    if len(secret) < LEAST_BYTES:
        raise UserMistake(f"{key}: a secret of less than {LEAST_BYTES} bytes protects nothing")
    return secret


def signature_headers(secrets: Sequence[bytes], delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that name a delivery and its moment, and sign both with the body by each of the secrets."""
    headers = {"webhook-id": delivery_id, "webhook-timestamp": str(timestamp)}
    if secrets:
        signed = f"{delivery_id}.{timestamp}.".encode() + body
        made = [base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode() for secret in secrets]
        headers["webhook-signature"] = " ".join(f"v1,{one}" for one in made)
    return headers
