"""The services of tracing, and the response of `GET /info`, which needs no API key."""

from dataclasses import dataclass, field

import msgspec

from portside import __version__
from portside.kernel.crypto import SecretBox
from portside.kernel.http import routes
from portside.kernel.http.health import HealthServices
from portside.kernel.large_reads import ReadBudget
from portside.limits.types import Region
from portside.tracing.bodies import IngestLimits
from portside.tracing.quotas import Quotas
from portside.tracing.retention import TraceRetention

CONTRACT_VERSION = "0.16.40"


class BatchIngestConfig(msgspec.Struct):
    """How SDKs batch runs; sizes are bytes before compression."""

    use_multipart_endpoint: bool = True
    scale_up_qsize_trigger: int = 1000
    scale_up_nthreads_limit: int = 16
    scale_down_nempty_trigger: int = 4
    size_limit: int = 100
    size_limit_bytes: int = 20 * 1024 * 1024


class InstanceFlags(msgspec.Struct):
    """Optional features that this server supports."""

    zstd_compression_enabled: bool = True
    dataset_examples_multipart_enabled: bool = True
    examples_multipart_enabled: bool = True


class PlatformInfo(msgspec.Struct):
    """The region, versions and limits of the server. SDKs compare `version`, the version of LangSmith's API."""

    region: Region = Region.US
    version: str = CONTRACT_VERSION
    portside_version: str = __version__
    batch_ingest_config: BatchIngestConfig = msgspec.field(default_factory=BatchIngestConfig)
    instance_flags: InstanceFlags = msgspec.field(default_factory=InstanceFlags)


@dataclass(frozen=True, kw_only=True)
class TracingServices(HealthServices):
    """The services that the routes of tracing, datasets and annotation use."""

    box: SecretBox
    info: PlatformInfo
    quotas: Quotas
    retention: TraceRetention
    ingest_limits: IngestLimits = field(default_factory=IngestLimits)
    read_budget: ReadBudget | None = None
    """Limits the memory of requests that send much; None for no limit."""


Context = routes.Context[TracingServices]
Routes = routes.Routes[Context]
