"""The agent server's settings, read from the environment (spec: Agent server constants)."""

from typing import Annotated, Literal

import msgspec

from portside.kernel.http.prefixes import A_PREFIX
from portside.kernel.settings import setting
from portside.kernel.spellings import environment_names


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one agent server runs."""

    host: Annotated[str, setting("Address to listen on.", *environment_names("GRAPH_SERVER_HOST"))] = "127.0.0.1"
    port: Annotated[
        int,
        msgspec.Meta(ge=1, le=65535),
        setting("Port to listen on.", *environment_names("GRAPH_SERVER_PORT"), "PORT"),
    ] = 2024
    database_url: Annotated[
        str | None,
        setting(
            "Postgres 15 or newer that keeps threads, runs and checkpoints. Without it the embedded Postgres is used.",
            "DATABASE_URI", "DATABASE_URL", "POSTGRES_URI",
        ),
    ] = None  # fmt: skip
    tier: Annotated[
        Literal["all", "api", "queue"],
        setting(
            "What this server does: api answers requests and executes no run, queue executes runs and answers only "
            "/ok, /metrics and /info, all does both.", "PORTSIDE_TIER",
        ),
    ] = "all"  # fmt: skip
    n_jobs_per_worker: Annotated[int, msgspec.Meta(ge=1, le=1000), setting("Runs executed at once.")] = 10
    bg_job_isolated_loops: Annotated[
        bool, setting("Give each concurrent run an event loop and thread of its own instead of one for all runs.")
    ] = False
    bg_job_max_retries: Annotated[
        int, msgspec.Meta(ge=0), setting("How often a run whose worker was lost is started again.")
    ] = 3
    bg_job_timeout_secs: Annotated[float, msgspec.Meta(gt=0), setting("Time limit of one run, in seconds.")] = 86_400
    bg_job_shutdown_grace_period_secs: Annotated[
        float,
        msgspec.Meta(ge=0, le=3600),
        setting("How long runs may go on after a stop was asked for, in seconds; then they are handed back."),
    ] = 180
    resumable_stream_ttl_seconds: Annotated[
        float, msgspec.Meta(ge=0), setting("How long the events of a resumable stream are kept, in seconds.")
    ] = 120
    stream_bus: Annotated[
        Literal["auto", "none"],
        setting(
            "How processes of one database tell each other that it is time to look: auto is Redis where REDIS_URI "
            "names one, else Postgres; with none they look once in a while, which is slower and as true."
        ),
    ] = "auto"
    redis_uri: Annotated[
        str | None,
        setting("Redis that carries hints and events between processes. Never needed, and never the truth.",
                "REDIS_URI", "REDIS_URI_CUSTOM"),
    ] = None  # fmt: skip
    redis_key_prefix: Annotated[str, setting("What the names of channels in Redis begin with.")] = ""
    redis_max_connections: Annotated[int, msgspec.Meta(ge=2), setting("Connections to Redis at most.")] = 2000
    http_max_request_body_bytes: Annotated[
        int, msgspec.Meta(ge=1024), setting("Largest request body that is accepted, in bytes; larger ones get 413.")
    ] = 25_000_000
    trusted_proxies: Annotated[
        str,
        setting(
            "Addresses and networks, separated by commas, of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` "
            "tell where requests come from, and how.", "TRUSTED_PROXIES", "FORWARDED_ALLOW_IPS",
        ),
    ] = "127.0.0.1,::1"  # fmt: skip
    http_request_body_timeout_seconds: Annotated[
        float,
        msgspec.Meta(gt=0, le=86_400),
        setting("Time for the body of a request to arrive, in seconds, and one more for each 8 KB of it; else 408."),
    ] = 120
    max_streams_per_caller: Annotated[
        int,
        msgspec.Meta(ge=0),
        setting(
            "Streams, awaited results and WebSockets that one caller may have open in one server; more get 429. "
            "A caller is a user, or without authentication an address. 0 is no limit."
        ),
    ] = 2000
    max_pending_runs_per_caller: Annotated[
        int,
        msgspec.Meta(ge=0),
        setting(
            "Runs of one caller that may wait to be executed, in all servers of the database; further ones get 429. "
            "Runs of crons are not counted. 0 is no limit."
        ),
    ] = 50_000
    mount_prefix: Annotated[
        str,
        A_PREFIX,
        setting(
            "Path below which all routes answer, such as /agents/mine; only /ok and /metrics answer at the root too."
        ),
    ] = ""
    public_url: Annotated[
        str,
        msgspec.Meta(pattern=r"^(https?://[^/?#\s]+)?$", max_length=300),
        setting(
            "Where clients find this server, without the mount prefix: the cards of agents say so. Without it they say "
            "what the client called, by its Host and X-Forwarded headers.", "PORTSIDE_PUBLIC_URL",
        ),
    ] = ""  # fmt: skip
    a2a_allowed_tool_call_results: Annotated[
        str,
        setting(
            "Tools whose results the histories of A2A tasks tell, separated by commas; all is every tool, none is none."
        ),
    ] = "all"
    cors_allow_origins: Annotated[
        str, setting("Origins of the web pages that may call this server, separated by commas; * is any, none is none.")
    ] = "*"
    allowed_hosts: Annotated[
        str,
        setting(
            "Host names that this server may be called by, separated by commas: *.example.org is any name below that, "
            "and * any name at all. Other requests get 400, but for /ok and /metrics."
        ),
    ] = "*"
    debug_folder: Annotated[
        str | None,
        setting("Folder that heap dumps go to. The routes /heapdump and /profile, which show the inside of the server, "
                "exist only where it is set; they want the permission deployments:update, or without authentication a "
                "call from the same machine."),
    ] = None  # fmt: skip
    graph_postgres_pool_max_size: Annotated[
        int,
        msgspec.Meta(ge=2),
        setting("Connections to Postgres for each pool.", *environment_names("GRAPH_POSTGRES_POOL_MAX_SIZE")),
    ] = 20
    state_memory_bytes: Annotated[
        int,
        msgspec.Meta(ge=0),
        setting(
            "Bytes of answers about the states of threads that this server remembers, to give them again while the "
            "database says that nothing changed. 0 is none.", "STATE_MEMORY_BYTES",
        ),
    ] = 32_000_000  # fmt: skip
    auth_type: Annotated[
        Literal["auto", "noop", "custom", "langsmith"],
        setting(
            "Who is let in: custom asks the project's own handler (auth.path), langsmith asks the platform for keys, "
            "noop lets everybody in, also from other machines. auto is the first of custom and langsmith that is "
            "configured; with neither, only this machine is let in.",
            *environment_names("GRAPH_AUTH_TYPE"),
        ),
    ] = "auto"
    auth_endpoint: Annotated[
        str | None,
        setting("The platform that knows whose a key is; deployments get it from theirs.", "LANGSMITH_AUTH_ENDPOINT"),
    ] = None
    inside_calls_as_user: Annotated[
        bool,
        setting(
            "Calls of a graph to the server it runs in, by get_client() without an address, are judged by the "
            "project's handlers as if the user of the run made them. Otherwise they see everything."
        ),
    ] = False
    graph_aes_key: Annotated[
        str | None,
        setting(
            "AES key of 16, 24 or 32 characters that checkpoints and kept events are encrypted with, or several "
            "separated by commas: the first encrypts, all of them decrypt.", *environment_names("GRAPH_AES_KEY"),
        ),
    ] = None  # fmt: skip
    graph_aes_json_keys: Annotated[
        str | None,
        setting(
            "Names of JSON keys, separated by commas, whose values are encrypted with that key wherever they are in "
            "threads, runs, crons, assistants and store items; * is every key that the server does not look for.",
            *environment_names("GRAPH_AES_JSON_KEYS"),
        ),
    ] = None
    webhook_max_attempts: Annotated[
        int, msgspec.Meta(ge=1, le=50), setting("How often a webhook is called at most until it was heard.")
    ] = 8
    webhook_retry_after_seconds: Annotated[
        float,
        msgspec.Meta(gt=0, le=3600),
        setting("The first pause between calls of a webhook, in seconds; each one is four times the one before."),
    ] = 5
    webhook_log_kept_hours: Annotated[
        float, msgspec.Meta(gt=0), setting("How long it is told what became of a webhook, in hours.")
    ] = 168
    log_level: Annotated[str, setting("DEBUG, INFO, WARNING or ERROR.")] = "INFO"
    log_json: Annotated[bool, setting("Write each log line as JSON.")] = False
    self_hosted_logs_enabled: Annotated[
        bool, setting("Tell the log of this server to SELF_HOSTED_LOGS_ENDPOINT too, without what looks like a secret.")
    ] = False
    self_hosted_logs_endpoint: Annotated[
        str | None,
        setting("Address that log lines are posted to, as JSON; one without a path means its /v1/metadata/submit."),
    ] = None
    deployment_id: Annotated[
        str | None, setting("The deployment this server runs for.", "LANGSMITH_HOST_PROJECT_ID")
    ] = None
    revision_id: Annotated[str | None, setting("The revision this server runs.", "LANGSMITH_HOST_REVISION_ID")] = None
    tenant_id: Annotated[str | None, setting("The workspace of the deployment.", "LANGSMITH_TENANT_ID")] = None

    @property
    def slots(self) -> int:
        """How many runs this server executes at once."""
        return 0 if self.tier == "api" else self.n_jobs_per_worker
