"""The services that the routes of the control plane use."""

from dataclasses import dataclass

from portside.control.addresses import NO_ROUTER, PublicAddresses, Router
from portside.control.archive_store import ArchiveStore
from portside.control.custom_hosts import NO_CUSTOM_HOSTS, CustomHosts, read_host
from portside.control.scope import DesiredChanges, PlatformAddress, Scope
from portside.identity.authentication import Authenticator
from portside.kernel.crypto import SecretBox
from portside.kernel.disk import DiskWatch
from portside.kernel.http import routes
from portside.kernel.http.headers import get_origin
from portside.kernel.outbound import OutboundRules


@dataclass(frozen=True, kw_only=True)
class ControlServices(routes.BaseServices):
    """The services of the control plane."""

    address: PlatformAddress
    archives: ArchiveStore
    box: SecretBox
    changes: DesiredChanges
    authenticator: Authenticator
    outbound_rules: OutboundRules
    revision_log_days: int
    repository_poll_s: float = 0.0
    """The time between two looks at a branch that a deployment follows; 0 for none."""
    disk: DiskWatch | None = None
    addresses: PublicAddresses | None = None
    router: Router = NO_ROUTER
    custom_hosts: CustomHosts = NO_CUSTOM_HOSTS


Context = routes.Context[ControlServices]
Routes = routes.Routes[Context]


def get_scope(ctx: Context) -> Scope:
    """Return the scope of a request."""
    services = ctx.services
    origin = get_origin(ctx.request)
    addresses = services.addresses and services.addresses.seen_from(origin)
    return Scope(
        db=services.db,
        box=services.box,
        authenticator=services.authenticator,
        changes=services.changes,
        actor=ctx.actor,
        addresses=addresses,
        router=services.router,
        custom_hosts=services.custom_hosts.excluding([read_host(origin)]),
    )
