"""What each package gets from the platform: one function for each kind of services, lowest package first."""

from portside.alerts.channels import AlertChannels, MailServer
from portside.alerts.http import AlertServices
from portside.alerts.rules import MeasuredParts, Measurements
from portside.audit.actions import build_operations
from portside.audit.http import AuditServices
from portside.backup.http import BackupServices
from portside.console.http import ConsoleServices
from portside.control.addresses import NO_ROUTER, PublicAddresses
from portside.control.archive_store import ArchiveStore
from portside.control.custom_hosts import parse_custom_hosts
from portside.control.deployments import describe_deployments
from portside.control.scope import PlatformAddress
from portside.control.server_rollouts import ServerRollouts
from portside.control.services import ControlServices
from portside.identity.oidc import OidcClient, OidcProvider
from portside.identity.provisioning import AdmissionRules
from portside.identity.services import IdentityServices, OidcSignIn
from portside.identity.workspaces import WorkspaceDeletionChecks
from portside.ingress.front import FrontServices, build_agents_pattern
from portside.kernel.crypto import SecretBox
from portside.kernel.errors import UserMistake
from portside.kernel.http.health import HealthServices
from portside.kernel.http.routes import BaseServices
from portside.kernel.modules import list_packages, list_routes
from portside.kernel.outbound import OutboundRules
from portside.kernel.version import full_version
from portside.limits.middleware import BudgetReader
from portside.operate.database_limit import DatabaseLimit
from portside.operate.disk_usage import DiskUsage
from portside.operate.http import OperateServices
from portside.platform.backups import build_schedule
from portside.platform.master_key import KeyRotation
from portside.platform.parts import PlatformParts
from portside.platform.settings import PlatformSettings
from portside.platform.system import SystemServices, build_installation
from portside.tracing.bodies import IngestLimits
from portside.tracing.retention import TraceRetention
from portside.tracing.services import PlatformInfo, TracingServices
from portside.usage.http import UsageServices


def build_base_services(parts: PlatformParts) -> BaseServices:
    """Return the services of packages that need only the database."""
    return BaseServices(db=parts.db)


def build_health_services(parts: PlatformParts) -> HealthServices:
    """Return the services of `GET /ok`."""
    return HealthServices(db=parts.db, health=parts.health)


def build_backup_services(parts: PlatformParts) -> BackupServices:
    """Return the services of backups."""
    return BackupServices(
        db=parts.db,
        backups=parts.backups.backups,
        archive=parts.backups.archive,
        home_folder=parts.installation.home.path,
    )


def build_identity_services(parts: PlatformParts) -> IdentityServices:
    """Return the services of identity. Raises UserMistake for an incomplete sign-in provider."""
    return IdentityServices(
        db=parts.db,
        authenticator=parts.authenticator,
        deletion_checks=WorkspaceDeletionChecks([describe_deployments]),
        trusted_proxies=parts.trusted_proxies,
        oidc=_build_oidc_sign_in(parts.installation.settings, parts.box),
    )


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


def build_audit_services(parts: PlatformParts) -> AuditServices:
    """Return the services of the audit log."""
    installation = parts.installation
    return AuditServices(
        db=parts.db,
        operations=build_operations(list_routes(installation.modules)),
        recorder=parts.recorder,
        log_days=installation.settings.audit_log_days,
    )


def build_tracing_services(parts: PlatformParts) -> TracingServices:
    """Return the services of tracing, datasets and annotation."""
    settings = parts.installation.settings
    return TracingServices(
        db=parts.db,
        health=parts.health,
        box=parts.box,
        info=PlatformInfo(settings.region, portside_version=full_version()),
        quotas=parts.quotas,
        retention=TraceRetention(settings.shortlived_trace_days, settings.longlived_trace_days, settings.trace_tier),
        ingest_limits=IngestLimits(settings.ingest_max_body_bytes, settings.ingest_max_run_bytes),
        read_budget=parts.read_budget,
    )


def build_usage_services(parts: PlatformParts) -> UsageServices:
    """Return the services of usage."""
    limits = parts.rate_limits
    return UsageServices(db=parts.db, budgets=None if limits is None else BudgetReader(*limits))


def build_control_services(parts: PlatformParts) -> ControlServices:
    """Return the services of the control plane."""
    settings = parts.installation.settings
    front = parts.installation.front
    addresses = None
    if front is not None:
        addresses = PublicAddresses(parts.workspace_id, build_agents_pattern(settings.front))

    return ControlServices(
        db=parts.db,
        address=PlatformAddress(settings.local_url, settings.trusted_proxies),
        archives=ArchiveStore(parts.installation.home.archives),
        box=parts.box,
        changes=parts.changes,
        authenticator=parts.authenticator,
        outbound_rules=_build_outbound_rules(settings.allow_private_git_hosts),
        addresses=addresses,
        router=front or NO_ROUTER,
        custom_hosts=parse_custom_hosts(settings.custom_hosts, filter(None, (settings.domain, settings.public_host))),
        disk=parts.disk,
        revision_log_days=settings.revision_log_days,
        repository_poll_s=settings.repository_poll_s,
    )


def build_front_services(parts: PlatformParts) -> FrontServices:
    """Return the services of the front."""
    return FrontServices(db=parts.db, front=parts.installation.front)


def build_operate_services(parts: PlatformParts) -> OperateServices:
    """Return the services of what operators see."""
    installation = parts.installation
    settings = installation.settings
    home = installation.home.path
    return OperateServices(
        db=parts.db,
        disk_usage=DiskUsage(parts.db, installation.database_url, home, settings.disk_reserve),
        installation=build_installation(settings, list_packages(installation.modules)),
        disk=parts.disk,
        database_limit=DatabaseLimit(parts.db, home, settings.database_max_bytes),
        trusted_proxies=parts.trusted_proxies,
    )


def build_alert_services(parts: PlatformParts) -> AlertServices:
    """Return the services of alerts. Raises UserMistake for an incomplete mail server."""
    settings = parts.installation.settings
    schedule = build_schedule(settings)
    measured = MeasuredParts(
        db=parts.db,
        home=parts.installation.home.path,
        disk=parts.disk,
        front=None if parts.installation.front is None else settings.front,
        problems=parts.problems,
        backup_every=None if schedule is None else schedule.every,
    )

    rules = _build_outbound_rules(settings.alert_private_hosts)
    return AlertServices(
        db=parts.db,
        channels=AlertChannels(parts.db, parts.box, rules, _build_mail_server(settings)),
        measurements=Measurements(measured),
        check_s=settings.alert_check_s,
    )


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


def build_console_services(parts: PlatformParts) -> ConsoleServices:
    """Return the services of the console."""
    return ConsoleServices(db=parts.db, agent_origins=_list_agent_origins(parts))


def _list_agent_origins(parts: PlatformParts) -> tuple[str, ...]:
    """Return the origins of agents that the console may call: of the front, of this machine, and named ones."""
    settings = parts.installation.settings
    origins = tuple(settings.console_agent_origins.split())
    if parts.installation.front is None:
        return ("http://127.0.0.1:*", "http://localhost:*", *origins)
    if settings.agents == "host":
        return (f"https://*.{settings.front.domain}{settings.front.port_suffix}", *origins)

    return origins


def build_system_services(parts: PlatformParts) -> SystemServices:
    """Return the services of the platform's own routes."""
    settings = parts.installation.settings
    home = parts.installation.home
    is_automatic = settings.roll_forward == "automatic"
    emptiers = [module.empty_workspace for module in parts.installation.modules if module.empty_workspace is not None]

    return SystemServices(
        db=parts.db,
        settings=settings,
        home=home,
        disk=parts.disk,
        emptiers=emptiers,
        key_rotation=KeyRotation(parts.db, home, parts.box),
        rollouts=ServerRollouts(parts.db, parts.changes, full_version(), is_automatic=is_automatic),
    )
