"""What `GET /info` tells SDKs about this server, before any key is checked (contract: hosted API, section f.2)."""

import msgspec

from portside import __version__
from portside.limits.types import Region

CONTRACT_VERSION = "0.16.40"


class BatchIngestConfig(msgspec.Struct):
    """How SDKs are to gather runs into deliveries; sizes in bytes before compression."""

    use_multipart_endpoint: bool = True
    scale_up_qsize_trigger: int = 1000
    scale_up_nthreads_limit: int = 16
    scale_down_nempty_trigger: int = 4
    size_limit: int = 100
    size_limit_bytes: int = 20 * 1024 * 1024


class InstanceFlags(msgspec.Struct):
    """What this server understands."""

    zstd_compression_enabled: bool = True
    dataset_examples_multipart_enabled: bool = True
    examples_multipart_enabled: bool = True


class Info(msgspec.Struct):
    """The server's region, versions and limits; `version` is that of the contract, which SDKs compare."""

    region: Region = Region.US
    version: str = CONTRACT_VERSION
    portside_version: str = __version__
    batch_ingest_config: BatchIngestConfig = msgspec.field(default_factory=BatchIngestConfig)
    instance_flags: InstanceFlags = msgspec.field(default_factory=InstanceFlags)
