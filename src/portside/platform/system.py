"""The routes that show operators how this platform runs: settings, sign-in methods, disk, and versions of servers.

No response contains a secret. A text setting is shown only if `SHOWN` names it, so that a new one is hidden at first.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from portside.control.server_rollouts import (
    STARTED_AT,
    DeploymentServer,
    ServerRollout,
    ServerRollouts,
    get_servers,
    resume_rollout,
)
from portside.kernel.disk import DiskWatch, measure
from portside.kernel.http import routes as kernel_routes
from portside.kernel.http.audit_actions import Action
from portside.kernel.modules import EmptyWorkspace
from portside.kernel.settings import describe
from portside.kernel.version import full_version
from portside.operate.findings import ExaminedInstallation
from portside.operate.service import RunningService, find_running_service
from portside.operate.upgrade import Upgrade, read_upgrades
from portside.platform.home import Home
from portside.platform.master_key import KeyRotation, RotationState
from portside.platform.settings import PlatformSettings

SHOWN = frozenset(
    {
        "home",
        "host",
        "domain",
        "agents",
        "tls",
        "tls_certificate",
        "tls_key",
        "acme_server",
        "acme_email",
        "acme_root",
        "caddy",
        "region",
        "rate_limits_file",
        "model_prices_file",
        "trace_tier",
        "trusted_proxies",
        "console_agent_origins",
        "public_host",
        "custom_hosts",
        "oidc_issuer",
        "oidc_client_id",
        "oidc_allowed_domains",
        "oidc_groups_claim",
        "oidc_role_map",
        "oidc_default_role",
        "backup_to",
        "backup_passphrase_file",
        "smtp_host",
        "smtp_tls",
        "smtp_user",
        "smtp_from",
        "postgres_max_connections",
        "roll_forward",
        "log_level",
    }
)


@dataclass(frozen=True, kw_only=True)
class SystemServices(kernel_routes.BaseServices):
    """The services of the platform's own routes and tasks."""

    settings: PlatformSettings
    home: Home
    disk: DiskWatch
    emptiers: Sequence[EmptyWorkspace]
    key_rotation: KeyRotation
    rollouts: ServerRollouts


class SettingInForce(msgspec.Struct):
    """A setting by its environment variable. A hidden one has no value, and `is_set` says whether there is one."""

    name: str
    description: str
    value: bool | int | float | str | None
    is_set: bool
    is_default: bool
    is_hidden: bool


class Disk(msgspec.Struct):
    """The file system that holds the home folder, as ordinary users may fill it, in bytes."""

    folder: str
    total_bytes: int
    free_bytes: int


class SystemState(msgspec.Struct):
    """How the platform runs. `sign_in_methods` are those of browsers; `service` is null outside of systemd."""

    settings: list[SettingInForce]
    sign_in_methods: list[Literal["api-key", "oidc", "password"]]
    disk: Disk
    service: RunningService | None


Context = kernel_routes.Context[SystemServices]
routes = kernel_routes.Routes[Context]("system")


@routes.get("/system", permission="organization:manage")
async def get_system(ctx: Context) -> SystemState:
    """Return the settings in force without secrets, the ways to sign in, the disk of the home, and the service."""
    settings = ctx.services.settings
    methods: list[Literal["api-key", "oidc", "password"]] = ["password", "api-key"]
    if settings.oidc_issuer is not None:
        methods.append("oidc")

    disk = await asyncio.to_thread(_measure_disk, ctx.services.home.path)
    service = await asyncio.to_thread(find_running_service)
    return SystemState(list_settings_in_force(settings), methods, disk, service)


class UpgradeState(msgspec.Struct):
    """The version of this platform and its agents' servers. `last` is the last upgrade by `portside upgrade`.

    `started_at` is the start of this program; its process may be older.
    """

    version: str
    started_at: datetime
    is_automatic: bool
    rollout: ServerRollout | None
    agents: list[DeploymentServer]
    last: Upgrade | None


class RollForward(msgspec.Struct):
    """A request to replace servers of earlier versions; `skip` are deployments that keep theirs."""

    skip: Annotated[list[UUID], msgspec.Meta(max_length=1000)] = []


@routes.get("/system/upgrade", permission="organization:manage")
async def get_upgrade(ctx: Context) -> UpgradeState:
    """Return the platform's version and those of its agents' servers, and how far the replacement of these is."""
    return await _get_upgrade_state(ctx.services)


@routes.post(
    "/system/upgrade/roll-forward",
    operation="server_rollouts_start",
    permission="organization:manage",
    audit=Action("servers.roll_forward"),
)
async def roll_forward(ctx: Context, body: RollForward) -> UpgradeState:
    """Begin to replace servers of earlier versions, or continue after a halt: what failed is tried again."""
    await resume_rollout(ctx.services.db, full_version(), body.skip)
    ctx.services.rollouts.signal.set()
    return await _get_upgrade_state(ctx.services)


@routes.post("/system/master-key/rotate", permission="organization:manage", audit=Action("master_key.rotate"))
async def rotate_master_key(ctx: Context) -> RotationState:
    """Encrypt every secret with a new master key; the older key is removed ten minutes later."""
    return await ctx.services.key_rotation.begin()


async def _get_upgrade_state(services: SystemServices) -> UpgradeState:
    servers = await get_servers(services.db, full_version())
    last = next(iter(await asyncio.to_thread(read_upgrades, services.home.path)), None)
    is_automatic = services.settings.roll_forward == "automatic"

    return UpgradeState(
        version=full_version(),
        started_at=STARTED_AT,
        is_automatic=is_automatic,
        rollout=servers.rollout,
        agents=servers.servers,
        last=last,
    )


def list_settings_in_force(settings: PlatformSettings) -> list[SettingInForce]:
    """List all settings in the order of the reference; texts that are not in `SHOWN` have no value."""
    entries = []
    for field, doc in zip(msgspec.structs.fields(PlatformSettings), describe(PlatformSettings), strict=True):
        value = getattr(settings, field.name)
        is_default = value == doc.default

        if isinstance(value, Enum):
            value = value.value

        is_set = value is not None
        is_hidden = field.name not in SHOWN and (value is None or isinstance(value, str))
        entries.append(
            SettingInForce(
                name=doc.names[0],
                description=doc.description,
                value=None if is_hidden else value,
                is_set=is_set,
                is_default=is_default,
                is_hidden=is_hidden,
            )
        )

    return entries


def build_installation(
    settings: PlatformSettings,
    packages: Sequence[str],
    problem: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ExaminedInstallation:
    """Return what `portside doctor` examines. `problem` is what is wrong with the settings."""
    return ExaminedInstallation(
        home=settings.home_path,
        packages=tuple(packages),
        host=settings.host,
        port=settings.port,
        front=settings.front,
        is_fronted=settings.is_fronted,
        caddy=settings.caddy,
        database_url=settings.database_url,
        max_connections=settings.postgres_max_connections,
        has_listener=settings.own_listener,
        reserve=settings.disk_reserve,
        public_url=settings.front.origin,
        trusted_proxies=settings.trusted_proxies,
        oidc_issuer=settings.oidc_issuer,
        rate_limits_file=settings.rate_limits_file,
        model_prices_file=settings.model_prices_file,
        backup_to=settings.backup_to,
        keeps_wal=settings.backup_point_in_time,
        store_environment={name: value for name, value in environ.items() if name.startswith("AWS_")},
        problem=problem,
    )


def _measure_disk(folder: Path) -> Disk:
    space = measure(folder)
    return Disk(str(folder), space.total, space.free)
