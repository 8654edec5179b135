"""The routes for operators: the use of the disk."""

from dataclasses import dataclass

from portside.kernel.http import routes as kernel_routes
from portside.operate.disk_usage import DiskReport, DiskUsage


@dataclass(frozen=True, kw_only=True)
class OperateServices(kernel_routes.BaseServices):
    """The services of these routes."""

    disk_usage: DiskUsage


Context = kernel_routes.Context[OperateServices]
routes = kernel_routes.Routes[Context]("system")


@routes.get("/system/disk", permission="organization:manage")
async def show_disk(ctx: Context) -> DiskReport:
    """Return what takes the space of this platform, by deployment and kind of data."""
    disk = ctx.services.disk
    return await ctx.services.disk_usage.report(None if disk is None else disk.shortage)
