"""The platform: one server for identity, tracing, usage and control, with its background tasks.

`open_platform` wires the packages together. The packages decide everything else; `serving.py` serves it.
"""

import asyncio
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from portside import __version__
from portside.alerts.alerts import AlertWatch, OldAlerts
from portside.alerts.channels import AlertChannels, AlertDeliveries, MailServer
from portside.alerts.http import AlertServices
from portside.alerts.http import routes as alerts
from portside.alerts.rules import MeasuredParts, Measurements
from portside.annotation.http import routes as annotation
from portside.audit.actions import build_operations
from portside.audit.entries import BackgroundDatabase, record_start
from portside.audit.http import AuditServices
from portside.audit.http import routes as audit
from portside.audit.log import ExpiredEntries
from portside.audit.recording import Recorder, SuppressedRefusals
from portside.backup.http import BackupServices
from portside.backup.http import routes as backup
from portside.console.http import ConsoleServices
from portside.console.http import routes as console
from portside.control.addresses import NO_ROUTER, PublicAddresses
from portside.control.archive_store import ArchiveStore
from portside.control.archives import UnusedArchives
from portside.control.deployments import describe_deployments
from portside.control.http import routes as control
from portside.control.polling import PolledBranches
from portside.control.pushes import ExpiredPushDeliveries
from portside.control.revision_logs import OldRevisionLogs
from portside.control.scope import DesiredChanges, PlatformAddress, ScopeFactory
from portside.control.server_rollouts import ServerRollouts
from portside.control.services import ControlServices
from portside.datasets.http import routes as datasets
from portside.identity import first_start
from portside.identity.authentication import Authenticator, SessionRules
from portside.identity.guard import guard
from portside.identity.http import routes as identity
from portside.identity.oauth import routes as oauth
from portside.identity.oidc import OidcClient, OidcProvider
from portside.identity.provisioning import AdmissionRules
from portside.identity.services import IdentityServices, OidcSignIn
from portside.identity.signin import routes as sign_in
from portside.identity.workspaces import WorkspaceDeletionChecks
from portside.ingress.front import AgentsUnavailable, FromFront, Front, FrontRoutes, FrontServices, build_agents_pattern
from portside.ingress.front import routes as ingress
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.disk import DiskWatch, make_watched_folder
from portside.kernel.errors import UserMistake
from portside.kernel.http import health
from portside.kernel.http.body_size import LimitBody
from portside.kernel.http.middleware import RequestMiddleware
from portside.kernel.http.openapi import ServerInfo
from portside.kernel.http.prefixes import StripPrefix
from portside.kernel.http.proxies import read_networks
from portside.kernel.http.routes import Api, Context, Route, bind, get_body_limits
from portside.kernel.large_reads import ReadBudget, return_large_blocks
from portside.kernel.migrations import DatabaseIsNewer, is_migrated, migrate
from portside.kernel.outbound import OutboundRules
from portside.kernel.reconcile import Driver, Task
from portside.kernel.version import full_version
from portside.limits.callers import Callers
from portside.limits.middleware import BudgetReader, LimitScope, RateLimits
from portside.limits.table import Table, read_table
from portside.limits.windows import Windows
from portside.operate.database_limit import DatabaseLimit
from portside.operate.disk_usage import DiskUsage
from portside.operate.http import OperateServices
from portside.operate.http import routes as operate
from portside.operate.upgrade import read_upgrades
from portside.platform.backups import build_backup_tasks, build_schedule
from portside.platform.deleted_workspaces import DeletedWorkspaces
from portside.platform.home import Home, read_key
from portside.platform.listener import ListenerKey, ListenerLog, ensure_listener_key
from portside.platform.master_key import KeyRotation, KeyRotationServices, check_key
from portside.platform.master_key import routes as master_key
from portside.platform.settings import PlatformSettings
from portside.platform.system import SystemServices, build_installation, list_settings_in_force
from portside.platform.system import routes as system
from portside.prompts.http import routes as prompts
from portside.tracing.bodies import IngestLimits
from portside.tracing.charts_http import routes as charts
from portside.tracing.costs import RecomputedCosts
from portside.tracing.feedback_tokens import ExpiredFeedbackTokens
from portside.tracing.http import routes as tracing
from portside.tracing.pieces import UnusedPieces
from portside.tracing.prices import sync_prices
from portside.tracing.prices_http import routes as prices
from portside.tracing.quotas import Quotas
from portside.tracing.retention import ExpiredTraces, OrphanedData, TraceRetention
from portside.tracing.rollups import DailyRollups
from portside.tracing.services import PlatformInfo, TracingServices
from portside.usage.http import UsageServices
from portside.usage.http import routes as usage
from portside.usage.totals import PastHours

Problem = Callable[[], str | None]

PACKAGES = [
    "portside.identity",
    "portside.audit",
    "portside.limits",
    "portside.tracing",
    "portside.usage",
    "portside.datasets",
    "portside.prompts",
    "portside.annotation",
    "portside.control",
    "portside.alerts",
]
PREFIXES = ("/api/v1", "/api-host", "/api")
# The routes outside the hosted API, to which its rate limits do not apply, by their paths.
UNLIMITED = frozenset(route.path for route in (*health.routes, *control, *ingress, *console))
SERVER_INFO = ServerInfo("Portside platform", __version__, unlimited=UNLIMITED)


@dataclass(frozen=True, kw_only=True)
class PlatformServices(
    IdentityServices,
    TracingServices,
    UsageServices,
    ControlServices,
    FrontServices,
    ConsoleServices,
    OperateServices,
    SystemServices,
    KeyRotationServices,
    BackupServices,
    AlertServices,
    AuditServices,
):
    """The services of the platform."""


@asynccontextmanager
async def background_tasks(
    services: PlatformServices, settings: PlatformSettings, more: Sequence[Task]
) -> AsyncIterator[None]:
    """Run the background tasks until the end of the block. Each is safe in several processes at once."""
    db = services.db
    tasks: list[Task] = [
        UnusedArchives(db, services.archives),
        ExpiredPushDeliveries(db),
        OldRevisionLogs(db, settings.revision_log_days),
        ExpiredTraces(db, services.retention),
        OrphanedData(db, services.retention),
        ExpiredFeedbackTokens(db),
        UnusedPieces(db),
        PastHours(db),
        DailyRollups(db),
        RecomputedCosts(db),
        DeletedWorkspaces(db),
        *more,
    ]

    if settings.repository_poll_s:
        recorded = BackgroundDatabase(db, "revision.create", "insert_revision")
        acting = ScopeFactory(recorded, services.box, services.authenticator, services.changes)
        tasks.append(PolledBranches(acting, settings.repository_poll_s, services.outbound_rules, services.disk))

    driver = Driver(tasks)
    driver.start()
    try:
        yield
    finally:
        await driver.close()


ROUTES: list[Route[Context[PlatformServices]]] = [
    *health.routes,
    *identity,
    *sign_in,
    *oauth,
    *audit,
    *tracing,
    *charts,
    *prices,
    *datasets,
    *prompts,
    *annotation,
    *usage,
    *control,
    *ingress,
    *console,
    *operate,
    *system,
    *master_key,
    *backup,
    *alerts,
]


class PlatformApp(msgspec.Struct):
    """A running platform without its sockets. `new_key` is set only at the first start."""

    asgi: Any
    draining: asyncio.Event
    changes: DesiredChanges
    new_key: str | None
    listener_key: str


@asynccontextmanager
async def open_platform(
    home: Home,
    settings: PlatformSettings,
    database_url: str,
    problems: dict[str, Problem] | None = None,
    front: Front | None = None,
) -> AsyncIterator[PlatformApp]:
    """Migrate the database and open the platform; close everything at the end. Raises UserMistake.

    `GET /ok` reports `problems`: why Postgres or the listener, which other code supervises, are down.
    """
    return_large_blocks()
    disk = DiskWatch(make_watched_folder(home.path), settings.disk_reserve)
    problems = {} if problems is None else problems
    db = await Database.connect(database_url)
    try:
        # Also before the migration, which would create tables in a database that DATABASE_URL names by mistake.
        await _check_database(db, home, is_migrated=await is_migrated(db))
        await _migrate(db, home)
        await _check_database(db, home, is_migrated=True)

        if not home.master_key.exists() and await first_start.is_set_up(db):
            raise UserMistake(
                f"{home.master_key} is missing, and the secrets of this database cannot be decrypted without it; "
                "restore it from a backup"
            )

        box = await check_key(db, home)
        await sync_prices(db, Path(settings.model_prices_file) if settings.model_prices_file else None)

        new_key = await first_start.set_up(db, api_key=settings.api_key)
        if new_key is not None:
            home.keep_key(home.api_key, new_key)

        changes = DesiredChanges()
        authenticator = Authenticator(db, _build_session_rules(settings))
        workspace_id = await first_start.get_first_workspace(db)
        windows = Windows(db)
        limits = _build_rate_limits(settings, authenticator, windows)
        backups = build_backup_tasks(settings, database_url, problems)

        services = PlatformServices(
            db=db,
            authenticator=authenticator,
            box=box,
            disk=disk,
            health=health.HealthChecks({"postgres": db.is_alive}, ChainMap({"disk": lambda: disk.shortage}, problems)),
            changes=changes,
            info=PlatformInfo(settings.region, portside_version=full_version()),
            quotas=Quotas(db),
            budgets=BudgetReader(*limits) if limits else None,
            read_budget=ReadBudget(settings.answer_max_bytes, settings.large_reads_max_bytes),
            ingest_limits=IngestLimits(settings.ingest_max_body_bytes, settings.ingest_max_run_bytes),
            retention=TraceRetention(
                settings.shortlived_trace_days, settings.longlived_trace_days, settings.trace_tier
            ),
            address=PlatformAddress(settings.local_url, settings.trusted_proxies),
            archives=ArchiveStore(home.archives),
            operations=build_operations(ROUTES),
            deletion_checks=WorkspaceDeletionChecks([describe_deployments]),
            trusted_proxies=read_networks(settings.trusted_proxies),
            oidc=_build_oidc_sign_in(settings, box),
            outbound_rules=_build_outbound_rules(settings.allow_private_git_hosts),
            addresses=PublicAddresses(workspace_id, build_agents_pattern(settings.front)) if front else None,
            router=front or NO_ROUTER,
            front=front,
            agent_origins=_list_agent_origins(settings, front),
            installation=build_installation(settings, PACKAGES),
            key_rotation=KeyRotation(db, home, box),
            backups=backups.backups,
            keeps_log=backups.archive is not None,
            disk_usage=DiskUsage(db, database_url, home.path, settings.disk_reserve),
            settings=settings,
            home_folder=home.path,
            rollouts=ServerRollouts(db, changes, full_version(), is_automatic=settings.roll_forward == "automatic"),
            channels=AlertChannels(
                db, box, _build_outbound_rules(settings.alert_private_hosts), _build_mail_server(settings)
            ),
        )

        draining = asyncio.Event()
        recorder = Recorder(db, services.trusted_proxies)

        api: Any = Api(
            bind(recorder.wrap_routes(ROUTES), services),
            recorder.wrap_guard(guard),
            read_budget=services.read_budget,
            disk=disk,
        )
        if limits is not None:
            api = RateLimits(api, *limits, LimitScope(is_unlimited(api), needs_key(api)))

        bounded = LimitBody(
            api,
            settings.http_max_request_body_bytes,
            get_body_limits(ROUTES),
            max_values=settings.http_max_request_body_values,
        )

        prefixed = StripPrefix(bounded, PREFIXES)
        asgi = RequestMiddleware(prefixed if front else AgentsUnavailable(prefixed), draining=draining)
        listener_key, _ = await ensure_listener_key(db, home)

        more: list[Task] = [
            *backups.all,
            services.key_rotation,
            disk,
            DatabaseLimit(db, home.path, settings.database_max_bytes),
            services.rollouts,
        ]

        if settings.own_listener:
            more += [ListenerKey(db, home), ListenerLog(home.listener_log)]

        more += [SuppressedRefusals(recorder), ExpiredEntries(db, settings.audit_log_days)]
        await record_start(db, full_version(), _list_settings_in_use(settings))
        deliveries = AlertDeliveries(services.channels)
        schedule = build_schedule(settings)
        parts = MeasuredParts(
            db=db,
            home=home.path,
            disk=disk,
            front=settings.front if front else None,
            problems=problems,
            backup_every=None if schedule is None else schedule.every,
        )

        more += [
            deliveries,
            AlertWatch(db, Measurements(parts), deliveries, every_s=settings.alert_check_s),
            OldAlerts(db),
        ]

        if front is not None:
            more.append(FrontRoutes(front))
            await front.open(db, workspace_id)

        async with windows.maintained(), background_tasks(services, settings, more):
            yield PlatformApp(
                asgi=FromFront(asgi) if front else asgi,
                draining=draining,
                changes=changes,
                new_key=new_key,
                listener_key=listener_key,
            )
    finally:
        await db.close()


async def _migrate(db: Database, home: Home) -> None:
    """Migrate the database. Raises UserMistake, with the backup from before an upgrade that cannot be taken back."""
    try:
        await migrate(db, PACKAGES)
    except DatabaseIsNewer as exc:
        last = next(iter(read_upgrades(home.path)), None)
        if last is None or last.backup is None:
            raise

        raise UserMistake(f"{exc}. That of the upgrade to {last.after} is {last.backup}") from exc


def _build_outbound_rules(is_allowed: bool) -> OutboundRules:  # noqa: FBT001 - the value of a setting
    return OutboundRules(allow_private=is_allowed, allow_loopback=is_allowed)


def _build_mail_server(settings: PlatformSettings) -> MailServer | None:
    """Return the mail server, if one is configured. Raises UserMistake."""
    if settings.smtp_host is None:
        return None
    if settings.smtp_from is None:
        raise UserMistake("setting SMTP_FROM: not set, and SMTP_HOST needs it")

    return MailServer(
        host=settings.smtp_host,
        port=settings.smtp_port,
        sender=settings.smtp_from,
        tls=settings.smtp_tls,
        user=settings.smtp_user,
        password=settings.smtp_password,
    )


def _list_settings_in_use(settings: PlatformSettings) -> list[str]:
    """Return the names of the settings that are not at their defaults."""
    return [entry.name for entry in list_settings_in_force(settings) if not entry.is_default]


def _list_agent_origins(settings: PlatformSettings, front: Front | None) -> tuple[str, ...]:
    """Return the origins of agents that the console may call: of the front, of this machine, and named ones."""
    origins = tuple(settings.console_agent_origins.split())
    if front is None:
        return ("http://127.0.0.1:*", "http://localhost:*", *origins)
    if settings.agents == "host":
        return (f"https://*.{settings.front.domain}{settings.front.port_suffix}", *origins)

    return origins


def _build_session_rules(settings: PlatformSettings) -> SessionRules:
    return SessionRules(timedelta(hours=settings.session_lifetime_hours), timedelta(hours=settings.session_idle_hours))


def _build_oidc_sign_in(settings: PlatformSettings, box: SecretBox) -> OidcSignIn | None:
    """Return the sign-in provider, if one is configured. Raises UserMistake."""
    if settings.oidc_issuer is None:
        return None
    if settings.oidc_client_id is None:
        raise UserMistake("setting OIDC_CLIENT_ID: not set, and OIDC_ISSUER needs it")

    client = OidcClient(settings.oidc_issuer, settings.oidc_client_id, settings.oidc_client_secret)
    rules = AdmissionRules.read(
        domains=settings.oidc_allowed_domains,
        groups_claim=settings.oidc_groups_claim,
        role_map=settings.oidc_role_map,
        default_role=settings.oidc_default_role,
    )

    return OidcSignIn(OidcProvider(client, box), rules)


async def _check_database(db: Database, home: Home, *, is_migrated: bool) -> None:
    """Raise UserMistake if the home belongs to a platform but the database is empty."""
    if read_key(home.api_key) is None or (is_migrated and await first_start.is_set_up(db)):
        return

    raise UserMistake(
        f"{home.api_key} belongs to a platform, but the database is empty. Nothing was changed. If DATABASE_URL names "
        "the wrong database, correct it; if the database was lost, restore its dump; to begin with an empty platform, "
        "move the home folder away"
    )


def _build_rate_limits(
    settings: PlatformSettings, authenticator: Authenticator, windows: Windows
) -> tuple[Table, Callers, Windows] | None:
    """Return the parts of the rate limits; None without any. Raises UserMistake for an invalid table or proxy list."""
    if not settings.rate_limits:
        return None

    file = Path(settings.rate_limits_file) if settings.rate_limits_file else None
    callers = Callers(authenticator, read_networks(settings.trusted_proxies))
    return Table(read_table(file), settings.region), callers, windows


def needs_key(api: Api) -> Callable[[Any], bool]:
    """Return a function that tells of the scope of a request whether it needs a key or login."""
    return lambda scope: (route := api.find(scope)) is not None and not route.public


def is_unlimited(api: Api) -> Callable[[Any], bool]:
    """Return a function that tells of the scope of a request whether the rate limits do not apply to it.

    It goes by the route: a path below it may be another route.
    """
    return lambda scope: (route := api.find(scope)) is not None and route.path in UNLIMITED
