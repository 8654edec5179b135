"""Settings that do not fit together are refused by name, and each reaches the part that it is about."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from portside.backup.container import Passphrase
from portside.backup.stores import FolderStore
from portside.kernel.crypto import SecretBox
from portside.kernel.disk import DiskReserve
from portside.kernel.errors import UserMistake
from portside.kernel.outbound import OutboundRules
from portside.platform import parts, services
from portside.platform.backups import build_backup_tasks, build_schedule, load_passphrase, take_backup
from portside.platform.settings import PlatformSettings

URL = "postgresql://portside@127.0.0.1/portside"
PASSPHRASE = "correct horse battery"


def build_settings(tmp_path: Path, **given: Any) -> PlatformSettings:
    return PlatformSettings(home=str(tmp_path / "home"), **given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"backup_point_in_time": True}, "BACKUP_POINT_IN_TIME: needs BACKUP_TO"),
        ({"backup_to": "stored"}, "BACKUP_TO: needs a passphrase"),
        ({"backup_to": "stored", "backup_passphrase": "too short"}, "at least 12 characters"),
        ({"backup_to": "ftp://stored", "backup_passphrase": PASSPHRASE}, "neither a folder nor s3"),
        (
            {
                "backup_to": "stored",
                "backup_passphrase": PASSPHRASE,
                "backup_point_in_time": True,
                "database_url": URL,
            },
            "BACKUP_POINT_IN_TIME: works with the embedded Postgres only",
        ),
    ],
)
def test_backups_that_could_not_be_taken_are_refused_at_the_start(
    tmp_path: Path, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserMistake, match=reason):
        build_backup_tasks(build_settings(tmp_path, **given), URL)


def test_backups_are_taken_as_the_settings_say(tmp_path: Path) -> None:
    settings = build_settings(
        tmp_path,
        backup_to=str(tmp_path / "stored"),
        backup_passphrase=PASSPHRASE,
        backup_every_hours=6,
        backup_keep=3,
        backup_keep_days=14,
        database_url=URL,
    )

    tasks = build_backup_tasks(settings, URL)
    assert tasks.archive is None
    assert tasks.backups is not None and tasks.backups.schedule == build_schedule(settings)
    plan = tasks.backups.schedule
    assert (plan.location, plan.home) == (str(tmp_path / "stored"), tmp_path / "home")
    assert (plan.every, plan.keep, plan.keep_for) == (timedelta(hours=6), 3, timedelta(days=14))

    # The command that takes the backup is another process, which must find the same platform.
    environment = tasks.backups._environment
    assert (environment["PORTSIDE_HOME"], environment["DATABASE_URL"]) == (str(tmp_path / "home"), URL)


def test_file_with_the_passphrase_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_text("of the file, which is long\n")
    both = {"backup_passphrase": PASSPHRASE, "backup_passphrase_file": str(file)}
    found = load_passphrase(build_settings(tmp_path, **both))
    assert found is not None and found._text == b"of the file, which is long"
    assert load_passphrase(build_settings(tmp_path)) is None


def test_short_passphrase_encrypts_no_backup(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "stored")
    with pytest.raises(UserMistake, match="at least 12 characters"):
        take_backup(build_settings(tmp_path), store, "a.backup", Passphrase("too short"), lambda _: None)

    assert list(tmp_path.iterdir()) == []


def test_mail_and_sign_in_need_all_their_settings() -> None:
    with pytest.raises(UserMistake, match="SMTP_FROM"):
        services._build_mail_server(PlatformSettings(smtp_host="mail.example"))
    with pytest.raises(UserMistake, match="OIDC_CLIENT_ID"):
        services._build_oidc_sign_in(PlatformSettings(oidc_issuer="https://provider.example"), SecretBox(b"k" * 32))
    with pytest.raises(UserMistake, match="OIDC_ALLOWED_DOMAINS"):
        incomplete = PlatformSettings(oidc_issuer="https://provider.example", oidc_client_id="portside")
        services._build_oidc_sign_in(incomplete, SecretBox(b"k" * 32))

    assert services._build_mail_server(PlatformSettings()) is None
    assert services._build_oidc_sign_in(PlatformSettings(), SecretBox(b"k" * 32)) is None


def test_networks_are_reached_only_if_the_operator_allows_it() -> None:
    assert services._build_outbound_rules(False) == OutboundRules()
    assert services._build_outbound_rules(True) == OutboundRules(allow_private=True, allow_loopback=True)
    assert OutboundRules() == OutboundRules(allow_private=False, allow_loopback=False)


@pytest.mark.parametrize("given", [{"tls": "internal"}, {"agents": "host"}, {"tls": "off", "agents": "host"}])
def test_tls_and_names_of_agents_need_a_domain(given: dict[str, Any]) -> None:
    with pytest.raises(UserMistake, match="need a domain"):
        _ = PlatformSettings(**given).front

    assert PlatformSettings(domain="portside.example.com", **given).front.domain == "portside.example.com"


def test_tls_with_files_needs_both(tmp_path: Path) -> None:
    (tmp_path / "chain.pem").touch()
    (tmp_path / "key.pem").touch()
    given = {"domain": "portside.example.com", "tls": "files"}
    both = {"tls_certificate": str(tmp_path / "chain.pem"), "tls_key": str(tmp_path / "key.pem")}
    assert PlatformSettings(**given, **both).front.key == both["tls_key"]
    for name in both:
        for value in (None, str(tmp_path / "none")):
            with pytest.raises(UserMistake, match="--tls-certificate and --tls-key"):
                _ = PlatformSettings(**given, **(both | {name: value})).front


def build_parts(settings: PlatformSettings) -> Any:
    """Return the parts of a platform as far as the services take settings from them."""
    installation = SimpleNamespace(settings=settings, front=None, modules=[], home=SimpleNamespace(archives=Path()))
    names = ("db", "health", "box", "quotas", "read_budget", "recorder", "changes", "authenticator", "disk")
    return SimpleNamespace(installation=installation, workspace_id=None, **dict.fromkeys(names))


def test_each_limit_reaches_its_part() -> None:
    settings = PlatformSettings(
        session_lifetime_hours=48,
        session_idle_hours=3,
        audit_log_days=11,
        revision_log_days=12,
        shortlived_trace_days=13,
        longlived_trace_days=14,
        ingest_max_body_bytes=2_000_000,
        ingest_max_run_bytes=3_000_000,
        disk_reserve_bytes=4,
        disk_reserve_percent=5,
        repository_poll_s=6,
        domain="portside.example.com",
        custom_hosts="*.example.com",
        public_host="public.example.com",
    )

    rules = parts._build_session_rules(settings)
    assert (rules.lifetime, rules.idle) == (timedelta(hours=48), timedelta(hours=3))
    assert services.build_audit_services(build_parts(settings)).log_days == 11
    control = services.build_control_services(build_parts(settings))
    assert (control.revision_log_days, control.repository_poll_s) == (12, 6)
    assert control.custom_hosts.platform_hosts == {"portside.example.com", "public.example.com"}
    tracing = services.build_tracing_services(build_parts(settings))
    assert (tracing.retention.shortlived_days, tracing.retention.longlived_days) == (13, 14)
    assert (tracing.ingest_limits.body_bytes, tracing.ingest_limits.run_bytes) == (2_000_000, 3_000_000)
    assert settings.disk_reserve == DiskReserve(4, 5)
