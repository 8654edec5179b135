"""Bodies are decompressed within bounds."""

import gzip
import tracemalloc

import pytest
import zstandard

from portside.kernel.errors import BodyTooLarge
from portside.platform.settings import PlatformSettings
from portside.tracing.bodies import EncodingBroken, EncodingUnknown, IngestLimits, decode
from portside.tracing.services import BatchIngestConfig

PLAIN = b'{"a": "' + bytes(range(97, 123)) * 1000 + b'"}'


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("", PLAIN),
        ("identity", PLAIN),
        ("gzip", gzip.compress(PLAIN, mtime=0)),
        ("GZIP ", gzip.compress(PLAIN[:100], mtime=0) + gzip.compress(PLAIN[100:], mtime=0)),
        ("zstd", zstandard.compress(PLAIN)),
        ("zstd", zstandard.compress(PLAIN[:100]) + zstandard.compress(PLAIN[100:])),
    ],
)
def test_bodies_are_decoded(encoding: str, body: bytes):
    assert decode(body, encoding) == PLAIN


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_the_decoded_size_is_limited(compress):
    encoding = "gzip" if compress is gzip.compress else "zstd"
    assert decode(compress(b"x" * 1000), encoding, limit=1000) == b"x" * 1000
    with pytest.raises(BodyTooLarge):
        decode(compress(b"x" * 1001), encoding, limit=1000)


def test_a_decompression_bomb_is_refused_early():
    bomb = zstandard.compress(bytes(150 * 1024 * 1024))
    assert len(bomb) < 50_000
    tracemalloc.start()

    with pytest.raises(BodyTooLarge):
        decode(bomb, "zstd")

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 70 * 1024 * 1024


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd"])
def test_other_encodings_are_refused(encoding: str):
    with pytest.raises(EncodingUnknown):
        decode(PLAIN, encoding)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_that_does_not_match_its_encoding_is_refused(encoding: str):
    with pytest.raises(EncodingBroken):
        decode(PLAIN, encoding)


def test_a_truncated_body_is_refused_or_stays_truncated():
    with pytest.raises(EncodingBroken):
        decode(gzip.compress(PLAIN)[:-20], "gzip")
    assert decode(zstandard.compress(PLAIN)[:-20], "zstd") != PLAIN


def test_the_largest_batch_of_an_sdk_fits():
    """An SDK fills a batch to `size_limit_bytes` before compression, and attachments come on top of that."""
    settings = PlatformSettings()
    largest = BatchIngestConfig().size_limit_bytes + settings.http_max_request_body_bytes
    assert settings.ingest_max_body_bytes >= largest
    assert IngestLimits() == IngestLimits(settings.ingest_max_body_bytes, settings.ingest_max_run_bytes)
