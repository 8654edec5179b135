"""The packages of the platform.

A new package is one line in `COMPONENTS`: its module, and the function that builds its services.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from portside import __version__
from portside.alerts.module import module as alerts
from portside.annotation.module import module as annotation
from portside.audit.module import module as audit
from portside.backup.module import module as backup
from portside.console.module import module as console
from portside.control.module import module as control
from portside.datasets.module import module as datasets
from portside.identity.module import module as identity
from portside.ingress.module import module as ingress
from portside.kernel.http.health import module as health
from portside.kernel.http.openapi import ServerInfo
from portside.kernel.http.routes import S
from portside.kernel.modules import Module, list_packages, list_routes
from portside.limits.module import module as limits
from portside.operate.module import module as operate
from portside.platform import services
from portside.platform.module import module as platform
from portside.platform.parts import PlatformParts
from portside.prompts.module import module as prompts
from portside.tracing.module import module as tracing
from portside.usage.module import module as usage


class Component(NamedTuple):
    """A package's module, and the function that builds the services of its handlers and tasks."""

    module: Module[Any]
    build_services: Callable[[PlatformParts], Any]


def _component(module: Module[S], build_services: Callable[[PlatformParts], S]) -> Component:
    """Return a component; mypy checks here that the services are those of the module."""
    return Component(module, build_services)


COMPONENTS: Sequence[Component] = (
    _component(health, services.build_health_services),
    _component(backup, services.build_backup_services),
    _component(identity, services.build_identity_services),
    _component(audit, services.build_audit_services),
    _component(limits, services.build_base_services),
    _component(tracing, services.build_tracing_services),
    _component(datasets, services.build_tracing_services),
    _component(prompts, services.build_base_services),
    _component(annotation, services.build_tracing_services),
    _component(usage, services.build_usage_services),
    _component(control, services.build_control_services),
    _component(ingress, services.build_front_services),
    _component(operate, services.build_operate_services),
    _component(alerts, services.build_alert_services),
    _component(console, services.build_console_services),
    _component(platform, services.build_system_services),
)
MODULES: Sequence[Module[Any]] = [component.module for component in COMPONENTS]

PACKAGES = list_packages(MODULES)
"""The packages with tables, in the order in which they are migrated."""
ROUTES = list_routes(MODULES)
_UNLIMITED_MODULES = [module for module in MODULES if not module.has_rate_limits]
UNLIMITED = frozenset(route.path for route in list_routes(_UNLIMITED_MODULES))
"""The paths outside of the hosted API, to which its rate limits do not apply."""
PREFIXES = ("/api/v1", "/api-host", "/api")
SERVER_INFO = ServerInfo("Portside platform", __version__, unlimited=UNLIMITED)
