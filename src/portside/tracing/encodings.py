"""Content encodings of deliveries: zstd (Python SDK) and gzip (JS SDK), undone within bounds.

A small body may unfold into gigabytes; reading stops as soon as it grows past the limit or out of all proportion.
"""

import gzip
import io
import zlib
from typing import Any, ClassVar

import zstandard

from portside.kernel.errors import BadRequest, BodyTooLarge, PortsideError

MAX_DECODED_BYTES = 200 * 1024 * 1024
MAX_RATIO = 1000
_RATIO_FROM_BYTES = 10 * 1024 * 1024
_MAX_WINDOW_BYTES = 32 * 1024 * 1024
_CHUNK = 1024 * 1024


class EncodingUnknown(PortsideError):
    """The Content-Encoding of the body is none of gzip, zstd, identity."""

    status: ClassVar[int] = 415
    code = "encoding_unknown"


class EncodingBroken(BadRequest):
    """The body is not what its Content-Encoding says."""

    code = "encoding_broken"


def decode(body: bytes, encoding: str, *, limit: int = MAX_DECODED_BYTES) -> bytes:
    """Undo a Content-Encoding. Raises EncodingUnknown, EncodingBroken, and BodyTooLarge past `limit` bytes.

    zstd does not say when its input was cut; the parsers of what is inside do.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "zstd":
            decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
            return _read(decompressor.stream_reader(body, read_across_frames=True), len(body), limit)
        case "gzip" | "x-gzip":
            return _read(gzip.GzipFile(fileobj=io.BytesIO(body)), len(body), limit)
        case _:
            raise EncodingUnknown


def _read(reader: Any, encoded: int, limit: int) -> bytes:
    decoded = bytearray()
    try:
        while chunk := reader.read(_CHUNK):
            decoded += chunk
            if len(decoded) > limit or len(decoded) > max(_RATIO_FROM_BYTES, encoded * MAX_RATIO):
                raise BodyTooLarge(f"The request body unfolds to more than this server accepts ({limit} bytes).")
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as exc:
        raise EncodingBroken from exc
    return bytes(decoded)
