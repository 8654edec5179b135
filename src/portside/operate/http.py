"""The routes for operators: the use of the disk, the doctor, and how requests arrive."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from portside.kernel.disk import DiskWatch
from portside.kernel.http import routes as kernel_routes
from portside.kernel.http.headers import get_header
from portside.kernel.http.proxies import Network, get_client_address
from portside.operate.database_limit import DatabaseLimit
from portside.operate.disk_usage import DiskReport, DiskUsage
from portside.operate.doctor import examine
from portside.operate.findings import Diagnosis, ExaminedInstallation


@dataclass(frozen=True, kw_only=True)
class OperateServices(kernel_routes.BaseServices):
    """The services of these routes."""

    disk_usage: DiskUsage
    installation: ExaminedInstallation
    disk: DiskWatch
    database_limit: DatabaseLimit
    trusted_proxies: Sequence[Network] = ()


class SeenRequest(msgspec.Struct):
    """How a request arrived, after all proxies: whether they pass on what they should."""

    host: str | None
    scheme: str
    client: str


Context = kernel_routes.Context[OperateServices]
routes = kernel_routes.Routes[Context]("system")


@routes.get("/system/disk", permission="organization:manage")
async def get_disk(ctx: Context) -> DiskReport:
    """Return what takes the space of this platform, by deployment and kind of data."""
    return await ctx.services.disk_usage.report(ctx.services.disk.shortage)


@routes.get("/system/doctor", operation="doctor_run", permission="organization:manage")
async def run_doctor(ctx: Context) -> Diagnosis:
    """Examine the installation, and say of each problem what to do."""
    # What needs the network of builds takes long; the command examines it too.
    return await examine(ctx.services.installation, skipped=frozenset({"registry"}))


@routes.get("/system/request", permission="organization:manage")
async def get_request(ctx: Context) -> SeenRequest:
    """Return how this request arrived, so that the doctor sees how proxies in front of the platform change it."""
    client = get_client_address(ctx.scope, ctx.services.trusted_proxies)
    return SeenRequest(get_header(ctx.scope, b"host"), ctx.scope["scheme"], client)
