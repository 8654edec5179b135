"""The platform's settings, read from the environment."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from portside.kernel.settings import setting
from portside.limits.types import Region

DEFAULT_HOME = str(Path("~/.portside"))


class PlatformSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one platform runs."""

    home: Annotated[str, setting("Folder that holds the platform's data, keys and builds.", "PORTSIDE_HOME")] = (
        DEFAULT_HOME
    )
    host: Annotated[str, setting("Address that the platform listens on.", "PORTSIDE_HOST")] = "127.0.0.1"
    port: Annotated[
        int, msgspec.Meta(ge=1, le=65535), setting("Port that the platform listens on.", "PORTSIDE_PORT")
    ] = 8700
    database_url: Annotated[
        str | None,
        setting(
            "Postgres 15 or newer for the platform and the databases of its deployments; the role must be allowed to "
            "create databases and roles. Without it the embedded Postgres is used.",
            "DATABASE_URL",
        ),
    ] = None
    api_key: Annotated[
        str | None,
        setting("Becomes the first API key at the first start, instead of a generated one.", "PORTSIDE_API_KEY"),
    ] = None
    http_max_request_body_bytes: Annotated[
        int, msgspec.Meta(ge=1024), setting("Largest request body that is accepted, in bytes; larger ones get 413.")
    ] = 25_000_000
    http_request_body_timeout_seconds: Annotated[
        float,
        msgspec.Meta(gt=0, le=86_400),
        setting("Time for the body of a request to arrive, in seconds, and one more for each 8 KB of it; else 408."),
    ] = 120
    region: Annotated[
        Region, setting("Region of this installation, `us` or `eu`: which rate limits hold.", "PORTSIDE_REGION")
    ] = Region.US
    rate_limits: Annotated[bool, setting("Hold the rate limits of the hosted API.")] = True
    rate_limits_file: Annotated[
        str | None,
        setting("Rate limits to hold instead of the documented ones, in the form that `portside limits` prints."),
    ] = None
    trace_tier: Annotated[
        Literal["shortlived", "longlived"],
        setting("Tier of traces whose project names none: `shortlived` or `longlived`."),
    ] = "longlived"
    shortlived_trace_days: Annotated[
        int, msgspec.Meta(ge=0, le=36_500), setting("Days that short-lived traces are kept; 0 keeps them for ever.")
    ] = 14
    longlived_trace_days: Annotated[
        int, msgspec.Meta(ge=0, le=36_500), setting("Days that long-lived traces are kept; 0 keeps them for ever.")
    ] = 400
    trusted_proxies: Annotated[
        str,
        setting(
            "Addresses and networks, separated by commas, of proxies whose `X-Forwarded-For` tells where requests "
            "come from."
        ),
    ] = ""
    repository_poll_s: Annotated[
        float,
        msgspec.Meta(ge=0, le=86_400),
        setting(
            "Seconds between two looks at the branch of a deployment that builds on push, for git hosts that cannot "
            "call this platform; 0 looks at none."
        ),
    ] = 60.0
    allow_private_git_hosts: Annotated[
        bool, setting("Let integrations list repositories of git hosts in private networks and on this machine.")
    ] = False
    own_listener: Annotated[
        bool,
        setting(
            "Run a listener beside the platform that deploys on this machine; without it others do the work.",
            "PORTSIDE_OWN_LISTENER",
        ),
    ] = True
    log_level: Annotated[str, setting("DEBUG, INFO, WARNING or ERROR.")] = "WARNING"
    log_json: Annotated[bool, setting("Write each log line as JSON.")] = False

    @property
    def home_path(self) -> Path:
        """The home folder as an absolute path."""
        return Path(self.home).expanduser().absolute()

    @property
    def public_url(self) -> str:
        """The address under which programs on this machine reach the platform."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://{host}:{self.port}"
