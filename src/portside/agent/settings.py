"""The agent server's settings, read from the environment of the process."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from portside.kernel.aliases import environment_names
from portside.kernel.disk import DiskReserve, ReserveBytes, ReservePercent
from portside.kernel.http import body_settings
from portside.kernel.http.body_settings import BodySeconds, MaxBodyBytes, MaxBodyValues
from portside.kernel.http.prefixes import PATH_PREFIX
from portside.kernel.settings import setting
from portside.kernel.worker_processes import count_usable_cores

# Processes share the connections to Postgres, and each of them needs a few.
MOST_AUTO_WORKERS = 4


class Tier(StrEnum):
    """What a server does."""

    # It answers requests and executes runs.
    ALL = "all"
    API = "api"
    QUEUE = "queue"
    # It answers requests, and has runs executed by servers of tier executor.
    ORCHESTRATOR = "orchestrator"
    EXECUTOR = "executor"


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one agent server runs."""

    # Where the server listens, and under which addresses
    host: Annotated[str, setting("Address to listen on.", *environment_names("GRAPH_SERVER_HOST"))] = "127.0.0.1"
    port: Annotated[
        int,
        msgspec.Meta(ge=1, le=65535),
        setting("Port to listen on.", *environment_names("GRAPH_SERVER_PORT"), "PORT"),
    ] = 2024
    mount_prefix: Annotated[
        str,
        PATH_PREFIX,
        setting("Path prefix of all routes, such as /agents/mine; /ok and /metrics answer at the root as well."),
    ] = ""
    public_url: Annotated[
        str,
        msgspec.Meta(pattern=r"^(https?://[^/?#\s]+)?$", max_length=300),
        setting(
            "Public URL of this server, without the mount prefix, for agent cards. Without it cards contain the "
            "address that the client called, from its Host and X-Forwarded headers.",
            "PORTSIDE_PUBLIC_URL",
        ),
    ] = ""
    trusted_proxies: Annotated[
        str,
        setting(
            "Addresses and networks of proxies, separated by commas, whose headers `X-Forwarded-For`, "
            "`X-Forwarded-Proto` and `X-Forwarded-Prefix` the server trusts.",
            "TRUSTED_PROXIES",
            "FORWARDED_ALLOW_IPS",
        ),
    ] = "127.0.0.1,::1"
    allowed_hosts: Annotated[
        str,
        setting(
            "Host names that requests may name, separated by commas: *.example.org matches any subdomain, * any name. "
            "Other requests get 400, except /ok and /metrics."
        ),
    ] = "*"
    cors_allow_origins: Annotated[
        str,
        setting("Origins of web pages that may call this server, separated by commas; * is any, empty is none."),
    ] = "*"

    # The database
    database_url: Annotated[
        str | None,
        setting(
            "Postgres 15 or newer for threads, runs and checkpoints. Without it the server uses the embedded Postgres.",
            "DATABASE_URI",
            "DATABASE_URL",
            "POSTGRES_URI",
        ),
    ] = None
    graph_postgres_pool_max_size: Annotated[
        int,
        msgspec.Meta(ge=2),
        setting(
            "Maximum number of connections to Postgres in each pool; the WORKERS share them.",
            *environment_names("GRAPH_POSTGRES_POOL_MAX_SIZE"),
        ),
    ] = 20
    disk_folder: Annotated[
        str | None,
        setting(
            "Folder on the disk of the database. While less than the reserve is free there, new data and runs are "
            "refused with 503. By default the home of the embedded Postgres; other disks are not watched."
        ),
    ] = None
    disk_reserve_bytes: ReserveBytes = DiskReserve().bytes
    disk_reserve_percent: ReservePercent = DiskReserve().percent

    # The processes of this server
    tier: Annotated[
        Tier,
        setting(
            "What this server does: api answers requests and executes no runs; queue executes runs and answers only "
            "/ok, /metrics and /info; all does both. orchestrator does both with graphs on other machines, which "
            "servers of tier executor execute.",
            "PORTSIDE_TIER",
        ),
    ] = Tier.ALL
    workers: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=64)] | Literal["auto"],
        setting(
            "Processes that serve together: each answers requests at the same address and executes runs. More than one "
            "uses more than one core. `auto` starts one, and more while these are busy, up to the cores and at most 4.",
            "WORKERS",
            "WEB_CONCURRENCY",
        ),
    ] = 1
    workers_cpu_percent: Annotated[
        float,
        msgspec.Meta(gt=0, le=100),
        setting(
            "With WORKERS=auto: another process starts when each has used this percentage of a core for 5 seconds."
        ),
    ] = 80
    workers_idle_secs: Annotated[
        float,
        msgspec.Meta(gt=0),
        setting(
            "With WORKERS=auto: a process ends, when its clients have left, after the others would have used less than "
            "half of WORKERS_CPU_PERCENT for this time."
        ),
    ] = 60
    n_jobs_per_worker: Annotated[
        int, msgspec.Meta(ge=1, le=1000), setting("Runs that each of the WORKERS executes at once.")
    ] = 10

    # Executor processes on this machine
    executors: Annotated[
        int,
        msgspec.Meta(ge=0, le=256),
        setting("Processes that execute graphs; 0 executes them in the server's own process.", "EXECUTORS"),
    ] = 0
    executors_max: Annotated[
        int,
        msgspec.Meta(ge=0, le=256),
        setting(
            "Maximum number of executor processes. The server starts more than EXECUTORS while runs fill them, and "
            "stops those that it did not need for EXECUTOR_IDLE_SECS (300 if that is 0). 0 means EXECUTORS.",
            "EXECUTORS_MAX",
        ),
    ] = 0
    executor_python: Annotated[
        str | None,
        setting("Python interpreter of executor processes, with the project's packages. Default: the server's own."),
    ] = None
    executor_node: Annotated[
        str | None, setting("Node program that executes JavaScript graphs. Default: the PATH's.", "EXECUTOR_NODE")
    ] = None
    executor_javascript: Annotated[
        str | None,
        setting("Folder of the JavaScript executor, with its packages. Default: the one in this package."),
    ] = None
    executor_max_runs: Annotated[
        int, msgspec.Meta(ge=0), setting("Runs after which an executor process is replaced; 0 is never.")
    ] = 0
    executor_max_memory_mb: Annotated[
        int,
        msgspec.Meta(ge=0),
        setting(
            "Megabytes of memory above which an executor process is replaced; one with 1.25 times as much is killed. "
            "0 is never."
        ),
    ] = 0
    executor_spares: Annotated[
        int,
        msgspec.Meta(ge=0, le=16),
        setting("Spare executor processes that are kept ready while there are runs, to replace one that ends."),
    ] = 1
    executor_idle_secs: Annotated[
        float,
        msgspec.Meta(ge=0),
        setting(
            "Seconds without work after which executor processes stop until there is work again; at most 30 for the "
            "process that a server starts with. 0 is never."
        ),
    ] = 0
    executor_known_graphs: Annotated[
        str | None,
        setting(
            "File that caches the descriptions of the graphs of one build. A server that finds it starts no executor "
            "before there is work. Use another file for other code or other variables."
        ),
    ] = None
    executor_heartbeat_secs: Annotated[
        float, msgspec.Meta(ge=2), setting("Seconds after which an executor process that does not answer is killed.")
    ] = 30
    executor_start_secs: Annotated[
        float, msgspec.Meta(gt=0, le=3600), setting("Seconds that an executor process has to import the project.")
    ] = 60
    pinned_revisions: Annotated[
        str | None,
        setting(
            "File with the revisions whose code threads continue with. A deployment with `pin_threads` writes it; "
            "without it every thread continues with this server's code."
        ),
    ] = None

    # Executors on other machines
    ff_use_core_api: Annotated[
        bool,
        setting("Let executors on other machines connect to this server, as to one of tier orchestrator."),
    ] = False
    core_api_host: Annotated[str, setting("Address that an orchestrator listens on for executors, by gRPC.")] = (
        "127.0.0.1"
    )
    core_api_port: Annotated[
        int, msgspec.Meta(ge=1, le=65535), setting("Port that an orchestrator listens on for executors.")
    ] = 50054
    core_api: Annotated[
        str | None,
        setting("The orchestrator that a server of tier executor works for, as HOST:PORT."),
    ] = None
    core_api_key: Annotated[
        str | None,
        setting(
            "Key of at least 32 characters that executors and their orchestrator share, or several separated by "
            "commas: the first is sent, all of them are accepted. Without a certificate it is sent in clear text."
        ),
    ] = None
    core_api_certificate: Annotated[
        str | None, setting("PEM file with this server's certificate chain for the core API.")
    ] = None
    core_api_private_key: Annotated[str | None, setting("File with the private key of that certificate.")] = None
    core_api_ca: Annotated[
        str | None,
        setting(
            "PEM file with the CA certificates that verify the certificates of peers. An orchestrator with this "
            "setting accepts only executors that have a certificate of this CA."
        ),
    ] = None
    executor_grpc_port: Annotated[
        int,
        msgspec.Meta(ge=1, le=65535),
        setting("Port on which a server of tier executor answers grpc.health.v1, at the address of GRAPH_SERVER_HOST."),
    ] = 50055

    # Runs
    bg_job_isolated_loops: Annotated[
        bool, setting("Give each concurrent run its own event loop and thread, instead of one for all runs.")
    ] = False
    bg_job_max_retries: Annotated[
        int, msgspec.Meta(ge=0), setting("How many times a run is retried after its worker was lost.")
    ] = 3
    bg_job_timeout_secs: Annotated[float, msgspec.Meta(gt=0), setting("Time limit of one run, in seconds.")] = 86_400
    bg_job_shutdown_grace_period_secs: Annotated[
        float,
        msgspec.Meta(ge=0, le=3600),
        setting("Seconds that runs may continue after a stop was requested; then they return to the queue."),
    ] = 180
    event_max_bytes: Annotated[
        int,
        msgspec.Meta(ge=1_000_000, le=120_000_000),
        setting(
            "Maximum number of bytes of one event of a run, and of its result; a larger one ends the run with the "
            "error EventTooLarge. All values of the state are one event."
        ),
    ] = 100_000_000
    resumable_stream_ttl_seconds: Annotated[
        float, msgspec.Meta(ge=0), setting("Seconds that the events of a resumable stream are kept after its run.")
    ] = 120

    # Notifications between processes
    stream_bus: Annotated[
        Literal["auto", "none"],
        setting(
            "How processes of one database notify each other: auto is Redis if REDIS_URI names one, else Postgres; "
            "with none they poll, which is slower and just as correct."
        ),
    ] = "auto"
    redis_uri: Annotated[
        str | None,
        setting(
            "Redis for notifications and events between processes. It is optional and holds no state.",
            "REDIS_URI",
            "REDIS_URI_CUSTOM",
        ),
    ] = None
    redis_key_prefix: Annotated[str, setting("Prefix of the names of channels in Redis.")] = ""
    redis_max_connections: Annotated[int, msgspec.Meta(ge=2), setting("Maximum number of connections to Redis.")] = 2000

    # Limits of requests and responses
    http_max_request_body_bytes: MaxBodyBytes = body_settings.MAX_BYTES
    http_max_request_body_values: MaxBodyValues = body_settings.MAX_VALUES
    http_request_body_timeout_seconds: BodySeconds = body_settings.WITHIN_S
    answer_max_bytes: Annotated[
        int,
        msgspec.Meta(ge=100_000),
        setting("Maximum number of bytes read for one response; a larger one gets 413, unless it is a single object."),
    ] = 25_000_000
    large_reads_max_bytes: Annotated[
        int,
        msgspec.Meta(ge=100_000),
        setting(
            "Bytes that all responses above 1 MB hold together; further ones wait up to 10 seconds, then get 503. "
            "The server needs about three times as much memory, and more for the states of threads."
        ),
    ] = 50_000_000
    state_memory_bytes: Annotated[
        int,
        msgspec.Meta(ge=0),
        setting(
            "Bytes of the cache of thread states, whose entries are used while their version in the database is "
            "unchanged. 0 turns the cache off.",
            "STATE_MEMORY_BYTES",
        ),
    ] = 32_000_000

    # Limits of a caller
    max_streams_per_caller: Annotated[
        int,
        msgspec.Meta(ge=0),
        setting(
            "Streams, awaited results and WebSockets that one caller may have open in one server; more get 429. "
            "A caller is a user, or without authentication an address. 0 turns the limit off."
        ),
    ] = 2000
    max_replay_bytes_per_caller: Annotated[
        int,
        msgspec.Meta(ge=0),
        setting(
            "Bytes of stored events that one server may be replaying to one caller at a time; further replays wait. "
            "0 turns the limit off."
        ),
    ] = 8_000_000
    max_replay_bytes: Annotated[
        int,
        msgspec.Meta(ge=0),
        setting(
            "Bytes of stored events that one server may be replaying to all callers at a time. 0 turns the limit off."
        ),
    ] = 32_000_000
    max_pending_runs_per_caller: Annotated[
        int,
        msgspec.Meta(ge=0),
        setting(
            "Pending runs of one caller, over all servers of the database; further ones get 429. Runs of crons do not "
            "count. 0 turns the limit off, and then callers do not share the slots fairly."
        ),
    ] = 50_000

    # Authentication
    auth_type: Annotated[
        Literal["auto", "noop", "custom", "langsmith"],
        setting(
            "How callers authenticate: custom by the project's own handler (auth.path), langsmith by API keys of the "
            "platform, noop not at all, from any machine. auto is the first of custom and langsmith that is "
            "configured; without either, only this machine has access.",
            *environment_names("GRAPH_AUTH_TYPE"),
        ),
    ] = "auto"
    auth_endpoint: Annotated[
        str | None,
        setting(
            "The platform that verifies API keys, or one deployment of it as `…/v2/deployments/{id}`, so that the "
            "deployment's `agent_access` applies and its tokens are accepted. Deployments get it from their platform.",
            "LANGSMITH_AUTH_ENDPOINT",
        ),
    ] = None
    inside_calls_as_user: Annotated[
        bool,
        setting(
            "Authorize the calls of a graph to its own server, by get_client() without a URL, as the user of the run. "
            "Otherwise such calls have access to everything."
        ),
    ] = False

    # Encryption
    graph_aes_key: Annotated[
        str | None,
        setting(
            "AES key of 16, 24 or 32 characters for checkpoints and stored events, or several separated by commas: "
            "the first encrypts, all of them decrypt.",
            *environment_names("GRAPH_AES_KEY"),
        ),
    ] = None
    graph_aes_json_keys: Annotated[
        str | None,
        setting(
            "Names of JSON keys, separated by commas, whose values that key encrypts in threads, runs, crons, "
            "assistants and store items; * means every key that the server itself does not search by.",
            *environment_names("GRAPH_AES_JSON_KEYS"),
        ),
    ] = None

    # The A2A protocol
    a2a_default_assistant: Annotated[
        str,
        setting(
            "The assistant, by its id or its graph's, that /.well-known/agent-card.json describes if the request "
            "names none. Without it a server with one graph describes that one; one with several answers 400."
        ),
    ] = ""
    a2a_allowed_tool_call_results: Annotated[
        str,
        setting("Tools whose results the history of A2A tasks includes, separated by commas; or all, or none."),
    ] = "all"

    # Webhooks
    webhook_max_attempts: Annotated[
        int, msgspec.Meta(ge=1, le=50), setting("Maximum number of attempts to deliver a webhook.")
    ] = 8
    webhook_retry_after_seconds: Annotated[
        float,
        msgspec.Meta(gt=0, le=3600),
        setting("Seconds before the second attempt of a webhook; each further pause is four times as long."),
    ] = 5
    webhook_log_kept_hours: Annotated[
        float, msgspec.Meta(gt=0), setting("Hours that the outcome of a webhook is kept.")
    ] = 168

    # Logs and debugging
    log_level: Annotated[str, setting("DEBUG, INFO, WARNING or ERROR.")] = "INFO"
    log_json: Annotated[bool, setting("Write each log line as JSON.")] = False
    self_hosted_logs_enabled: Annotated[
        bool,
        setting("Send the log to SELF_HOSTED_LOGS_ENDPOINT as well, without values that look like secrets."),
    ] = False
    self_hosted_logs_endpoint: Annotated[
        str | None,
        setting("URL that log lines are posted to, as JSON; without a path it means /v1/metadata/submit."),
    ] = None
    debug_folder: Annotated[
        str | None,
        setting(
            "Folder for heap dumps. The debugging routes /heapdump and /profile exist only if it is set. They need "
            "the permission deployments:update, or without authentication a call from the same machine."
        ),
    ] = None

    # The deployment that this server is a replica of
    deployment_id: Annotated[
        str | None, setting("The deployment this server runs for.", "LANGSMITH_HOST_PROJECT_ID")
    ] = None
    revision_id: Annotated[str | None, setting("The revision this server runs.", "LANGSMITH_HOST_REVISION_ID")] = None
    tenant_id: Annotated[str | None, setting("The workspace of the deployment.", "LANGSMITH_TENANT_ID")] = None

    @property
    def disk_reserve(self) -> DiskReserve:
        """How much of the database's disk stays free."""
        return DiskReserve(self.disk_reserve_bytes, self.disk_reserve_percent)

    @property
    def uses_core_api(self) -> bool:
        """Whether executors on other machines may connect to this server."""
        return self.tier == Tier.ORCHESTRATOR or (self.ff_use_core_api and self.tier != Tier.EXECUTOR)

    @property
    def has_local_graphs(self) -> bool:
        """Whether this process itself executes graphs."""
        return not self.executors and not self.uses_core_api

    @property
    def most_workers(self) -> int:
        """How many processes serve together at most. The load decides about all but one if `workers` is `auto`."""
        if self.workers != "auto":
            return self.workers
        if self.tier == Tier.EXECUTOR or self.uses_core_api or not Path("/proc/self/stat").exists():
            return 1

        return min(count_usable_cores(), MOST_AUTO_WORKERS)

    @property
    def pool_size(self) -> int:
        """How many connections each pool of one process may open."""
        return max(2, self.graph_postgres_pool_max_size // self.most_workers)

    @property
    def slots(self) -> int:
        """How many runs one process of this server executes at once."""
        return 0 if self.tier == Tier.API else self.n_jobs_per_worker
