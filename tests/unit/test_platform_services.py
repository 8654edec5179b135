"""What each package gets of the settings: two of them must not change places."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from portside.control.deployments import describe_deployments
from portside.ingress.front import Front
from portside.kernel.outbound import OutboundRules
from portside.platform.parts import PlatformParts, _build_session_rules
from portside.platform.services import (
    _list_agent_origins,
    build_alert_services,
    build_control_services,
    build_identity_services,
    build_tracing_services,
)
from portside.platform.settings import PlatformSettings
from portside.tracing.bodies import IngestLimits
from portside.tracing.retention import TraceRetention

DISK = object()
FRONT = cast("Front", object())


class AnyPart(SimpleNamespace):
    """Has every part; those that a test does not name are of no interest."""

    def __getattr__(self, name: str) -> Any:
        return None


def build_parts(settings: PlatformSettings, front: Front | None = None) -> PlatformParts:
    home = SimpleNamespace(path=Path("/home"), archives=Path("/home/archives"))
    installation = AnyPart(settings=settings, home=home, front=front, modules=[])
    return cast("PlatformParts", AnyPart(installation=installation, disk=DISK, workspace_id=UUID(int=1), problems={}))


def test_a_session_lasts_for_its_lifetime_and_ends_earlier_when_it_is_idle() -> None:
    rules = _build_session_rules(PlatformSettings(session_lifetime_hours=9, session_idle_hours=2))
    assert (rules.lifetime, rules.idle) == (timedelta(hours=9), timedelta(hours=2))


@pytest.mark.parametrize("is_allowed", [False, True])
def test_private_git_hosts_and_private_receivers_of_alerts_are_two_permissions(is_allowed: bool) -> None:  # noqa: FBT001
    settings = PlatformSettings(allow_private_git_hosts=is_allowed, alert_private_hosts=not is_allowed)
    parts = build_parts(settings)
    git = OutboundRules(allow_private=is_allowed, allow_loopback=is_allowed)
    alerts = OutboundRules(allow_private=not is_allowed, allow_loopback=not is_allowed)
    assert build_control_services(parts).outbound_rules == git
    assert build_alert_services(parts).channels._rules == alerts


def test_the_control_plane_has_its_settings() -> None:
    settings = PlatformSettings(
        revision_log_days=3,
        repository_poll_s=45,
        trusted_proxies="192.0.2.1",
        custom_hosts="*.example.com",
        domain="portside.example.com",
        public_host="public.example.com",
    )
    services = build_control_services(build_parts(settings))
    assert (services.revision_log_days, services.repository_poll_s) == (3, 45)
    assert services.address.trusted_proxies == "192.0.2.1"
    assert services.disk is DISK
    assert services.addresses is None

    for url, objection in (
        ("https://chat.example.com", None),
        ("https://portside.example.com", "must not have the host name of the platform"),
        ("https://public.example.com", "must not have the host name of the platform"),
    ):
        assert services.custom_hosts.find_objection(url) == objection


def test_a_workspace_with_deployments_is_protected() -> None:
    assert build_identity_services(build_parts(PlatformSettings())).deletion_checks.checks == [describe_deployments]


def test_traces_are_kept_and_limited_as_the_settings_say() -> None:
    settings = PlatformSettings(
        shortlived_trace_days=5,
        longlived_trace_days=50,
        trace_tier="longlived",
        ingest_max_body_bytes=7_000_000,
        ingest_max_run_bytes=6_000_000,
    )
    services = build_tracing_services(build_parts(settings))
    assert services.retention == TraceRetention(5, 50, "longlived")
    assert services.ingest_limits == IngestLimits(7_000_000, 6_000_000)


@pytest.mark.parametrize(
    ("settings", "front", "expected"),
    [
        ({}, None, ("http://127.0.0.1:*", "http://localhost:*")),
        ({"console_agent_origins": "https://a https://b"}, FRONT, ("https://a", "https://b")),
        ({"domain": "example.com", "agents": "host"}, FRONT, ("https://*.example.com",)),
    ],
)
def test_the_console_calls_agents_where_they_are(
    settings: dict[str, Any], front: Front | None, expected: tuple[str, ...]
) -> None:
    assert _list_agent_origins(build_parts(PlatformSettings(**settings), front)) == expected
