"""What the doctor asks of servers: Postgres and what is in it, the platform, certificates, proxies, other machines.

If nothing runs on the home, the embedded Postgres is started for the checks and stopped again.
"""

import asyncio
import datetime as dt
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import httpx2
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from portside.control.key_rotation import check_master_key
from portside.identity.keys import is_valid_key
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.embedded import SUPERUSER, EmbeddedPostgres
from portside.kernel.errors import DependencyUnavailable, UserMistake
from portside.kernel.migrations import find_pending, is_migrated
from portside.operate.findings import AsyncCheck, ExaminedInstallation, Finding, fault, fine, warning
from portside.operate.machine_checks import find_lock_holder
from portside.operate.sql import sql

_MIN_VERSION = 15
_MIN_CONNECTIONS = 50
_FULL_AT = 0.9
_CLOCK_APART_S = 5
_CLOCK_WRONG_S = 60
_LISTENER_SILENT_S = 180
_SOON = dt.timedelta(days=14)
_TIMEOUT_S = 10.0
_PROBED = Path("/system/request")
# An address of documentation: no client has it.
_CLAIMED = "203.0.113.9"
_WHAT_TO_DO = {
    "postgres": "see HOME/postgres/log and the log of the platform",
    "listener": "see HOME/logs/listener.log and the log of the platform; then restart the platform",
    "front": "see HOME/logs/ingress.log",
    "disk": "make room: 'portside disk' shows what takes the space",
}


async def check_platform(installation: ExaminedInstallation) -> AsyncIterator[Finding]:
    """Check that the platform answers, and that the parts it supervises run."""
    if find_lock_holder(installation.home) is None:
        yield warning("platform", "the platform does not run on this home", "start it with 'portside up'")
        return

    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S) as client:
            health = (await client.get(f"{installation.url}/ok")).json()
    except (httpx2.HTTPError, ValueError) as exc:
        yield fault(
            "platform", f"{installation.url}/ok does not answer: {exc}", "see its log; name its port with --port"
        )
        return

    for part, problem in health.get("problems", {}).items():
        yield fault(part, problem, _WHAT_TO_DO.get(part, "see the log of the platform"))

    for part, answers in health.get("services", {}).items():
        if not answers:
            yield fault(part, f"{part} does not answer", _WHAT_TO_DO.get(part, "see the log of the platform"))

    yield fine("platform", f"{installation.url} answers")


async def check_database(installation: ExaminedInstallation) -> AsyncIterator[Finding]:
    """Check that Postgres answers, has the right settings, and holds the database of this home."""
    try:
        async with open_database(installation) as database:
            if database is None:
                return

            db = database.db
            async for finding in _check_server(installation, db):
                yield finding

            async for finding in _check_content(installation, db):
                yield finding
    except DependencyUnavailable as exc:
        yield _describe_failure(exc.__cause__ or exc)
    except UserMistake as exc:
        yield fault("postgres", f"the embedded Postgres does not start: {exc}", "see HOME/postgres/log")


class OpenDatabase(NamedTuple):
    """A small pool of connections to the platform's database, and its URL."""

    db: Database
    url: str


@asynccontextmanager
async def open_database(installation: ExaminedInstallation) -> AsyncIterator[OpenDatabase | None]:
    """Connect to the platform's database; None where there is none yet, or it is another user's.

    Raises UserMistake, and DependencyUnavailable with the driver's error as its cause.
    """
    url = installation.database_url
    engine = None
    if url is None:
        has_data = (installation.home / "postgres" / "data" / "PG_VERSION").exists()
        if not has_data or installation.home.stat().st_uid != os.geteuid():
            yield None
            return

        engine = EmbeddedPostgres(installation.home, connections=installation.max_connections)
        if find_lock_holder(installation.home) is None:
            url = await asyncio.to_thread(engine.acquire, 0.0)
        else:
            url = engine.url(SUPERUSER)
            engine = None

    try:
        db = await Database.connect(url, max_size=2)
        try:
            yield OpenDatabase(db, url)
        finally:
            await db.close()
    finally:
        if engine is not None:
            await asyncio.to_thread(engine.release)


def _describe_failure(exc: BaseException) -> Finding:
    match exc:
        case asyncpg.InvalidAuthorizationSpecificationError():
            do = "correct user and password in DATABASE_URL"
        case asyncpg.InvalidCatalogNameError():
            do = "create the database, or correct its name in DATABASE_URL"
        case asyncpg.TooManyConnectionsError():
            return fault(
                "connections",
                f"Postgres accepts no further connection: {exc}",
                "stop what holds them (select * from pg_stat_activity), or raise max_connections",
            )
        case _:
            do = "start it, and check host, port and firewall of DATABASE_URL"

    return fault("postgres", f"Postgres does not answer: {exc or type(exc).__name__}", do)


async def _check_server(installation: ExaminedInstallation, db: Database) -> AsyncIterator[Finding]:
    """Check the version, the settings and the limits of the server."""
    facts: Any = await db.fetchrow(sql.server_facts)
    if facts["version"] < _MIN_VERSION:
        yield fault("postgres-version", f"it is Postgres {facts['version']}", f"use Postgres {_MIN_VERSION} or newer")

    if facts["is_read_only"]:
        yield fault(
            "read-only",
            "the database is read-only: a standby, or default_transaction_read_only is on",
            "name the primary in DATABASE_URL, or: alter system set default_transaction_read_only = off",
        )

    settings = (
        ("fsync", facts["syncs"], "a crash of the machine destroys the database", fault),
        ("full_page_writes", facts["writes_full_pages"], "a crash of the machine destroys the database", fault),
        ("autovacuum", facts["vacuums"], "tables grow without end, and in the end it accepts no writes", fault),
        ("synchronous_commit", facts["commits_synchronously"], "a crash loses what was acknowledged", warning),
    )
    for name, is_right, harm, level in settings:
        if not is_right:
            do = f"alter system set {name} = on; select pg_reload_conf()"
            yield level("postgres-settings", f"{name} is off: {harm}", do)

    if facts["encoding"] != "UTF8":
        yield fault("encoding", f"the database has the encoding {facts['encoding']}", "create it with encoding UTF8")

    if installation.has_listener and not (facts["may_create_databases"] and facts["may_create_roles"]):
        yield fault(
            "role",
            "the role of DATABASE_URL may not create databases and roles, so no deployment can be created",
            "as a superuser: alter role NAME createdb createrole",
        )

    if facts["connections"] > facts["max_connections"] * _FULL_AT:
        yield fault(
            "connections",
            f"{facts['connections']} of {facts['max_connections']} connections are taken",
            "raise max_connections (POSTGRES_MAX_CONNECTIONS for the embedded Postgres), or lower scales",
        )

    if facts["max_connections"] < _MIN_CONNECTIONS:
        yield warning(
            "connections",
            f"max_connections is {facts['max_connections']}; each agent that is awake needs three",
            "raise max_connections, and restart Postgres",
        )

    apart = abs(facts["now"] - time.time())
    if apart > _CLOCK_APART_S:
        level = fault if apart > _CLOCK_WRONG_S else warning
        yield level("clock", f"the clocks of this machine and of Postgres differ by {apart:.0f} s", "set both by NTP")

    yield fine("postgres", f"Postgres {facts['version']} answers")


async def _check_content(installation: ExaminedInstallation, db: Database) -> AsyncIterator[Finding]:
    """Check that the database belongs to this home and this version; report silent listeners and failed deployments."""
    if not await is_migrated(db):
        if (installation.home / "api-key").exists():
            yield fault(
                "database",
                "the home has an api-key, but the database is empty",
                "correct DATABASE_URL, restore the database, or move the home away to begin again",
            )

        return

    try:
        pending = await find_pending(db, list(installation.packages))
        if pending:
            names = ", ".join(pending[:3]) + (" …" if len(pending) > 3 else "")
            yield warning(
                "migrations",
                f"the next start changes the database: {names}",
                "make a backup, then restart it",
            )
    except UserMistake as exc:
        yield fault("migrations", str(exc), "install the version that made the database, or restore a backup")
        return

    if (installation.home / "master-key").exists() and await db.fetchval(sql.has_master_key_check):
        try:
            await check_master_key(db, SecretBox.from_file(installation.home / "master-key"))
            yield fine("master-key", "the master key decrypts this database")
        except UserMistake:
            yield fault(
                "master-key",
                f"{installation.home / 'master-key'} is the key of another platform, or an older one",
                "restore the file that was saved with this database, or correct DATABASE_URL",
            )

    async for finding in _check_keys(installation, db):
        yield finding

    silent_s = await db.fetchval(sql.last_seen_listener) if installation.has_listener else None
    if silent_s is not None and silent_s > _LISTENER_SILENT_S and find_lock_holder(installation.home) is not None:
        yield fault("listener", f"the listener has been silent for {silent_s:.0f} s", _WHAT_TO_DO["listener"])

    for row in await db.fetch(sql.troubled_deployments):
        revision_status = row["revision_status"] or ""
        has_failed = revision_status.endswith("FAILED") or revision_status == "UNKNOWN"
        is_about_revision = has_failed and row["status"] != "UNKNOWN"
        state = f"its newest revision is {revision_status}" if is_about_revision else row["status"]

        yield warning(
            "deployments",
            f"{row['name']}: {state}: {(row['reason'] or 'without a reason')[:300]}",
            f"portside deployments show {row['name']}; portside logs {row['name']}",
        )


async def _check_keys(installation: ExaminedInstallation, db: Database) -> AsyncIterator[Finding]:
    """Check that the key files of the home hold valid keys."""
    advice = {
        "api-key": "write a valid key into the file; commands on this machine use it",
        "listener-key": "nothing, if the platform runs: it makes a new one within seconds",
    }
    for file, do in advice.items():
        key = _read_key(installation.home / file)
        if key is not None and not await is_valid_key(db, key):
            yield warning(file, f"the key in {installation.home / file} was revoked, or is one of another platform", do)


async def check_certificates(installation: ExaminedInstallation) -> AsyncIterator[Finding]:
    """Check that certificates in files fit the domain and their key, and that the served one is valid."""
    if installation.front.tls == "files" and installation.front.certificate and installation.front.key:
        try:
            findings = list(
                _check_certificate_files(
                    installation, Path(installation.front.certificate), Path(installation.front.key)
                )
            )
        except (OSError, ValueError, TypeError) as exc:
            findings = [
                fault("certificate", f"the certificate or its key cannot be read: {exc}", "put both as PEM files")
            ]

        for finding in findings:
            yield finding

    if installation.front.is_public and find_lock_holder(installation.home) is not None:
        try:
            certificate = await asyncio.to_thread(
                _fetch_certificate, installation.front.domain or "", installation.front.https_port
            )
        except OSError as exc:
            do = "see HOME/logs/ingress.log; the domain's port 80 and 443 must be reachable for ACME"
            yield fault("certificate", f"no certificate is served for {installation.front.domain}: {exc}", do)
            return

        for finding in _check_dates(certificate, f"the certificate that is served for {installation.front.domain}"):
            yield finding


def _check_certificate_files(installation: ExaminedInstallation, file: Path, key_file: Path) -> Iterator[Finding]:
    certificate = x509.load_pem_x509_certificates(file.read_bytes())[0]
    yield from _check_dates(certificate, str(file))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    host_names = names.get_values_for_type(x509.DNSName)
    domain = installation.front.domain or ""
    if domain not in host_names and f"*.{domain.partition('.')[2]}" not in host_names:
        yield fault(
            "certificate", f"{file} is for {', '.join(host_names)} and not for {domain}", "get one for the domain"
        )

    key = load_pem_private_key(key_file.read_bytes(), None).public_key()
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_bytes(*form) != certificate.public_key().public_bytes(*form):
        yield fault("certificate", f"{key_file} is not the key of {file}", "name the key that belongs to it")

    if key_file.stat().st_mode & 0o077:
        yield warning("certificate", f"other users can read {key_file}", f"chmod 600 {key_file}")


def _check_dates(certificate: x509.Certificate, what: str) -> Iterator[Finding]:
    now = dt.datetime.now(dt.UTC)
    end = certificate.not_valid_after_utc
    if end < now:
        yield fault("certificate", f"{what} expired on {end:%Y-%m-%d}", "renew it, and restart the platform")
    elif certificate.not_valid_before_utc > now:
        yield fault("certificate", f"{what} is not valid yet", "check the clock of this machine")
    elif end - now < min(_SOON, (end - certificate.not_valid_before_utc) / 4):
        yield warning("certificate", f"{what} expires on {end:%Y-%m-%d}", "renew it; ACME: see HOME/logs/ingress.log")
    else:
        yield fine("certificate", f"{what} is valid until {end:%Y-%m-%d}")


def _fetch_certificate(domain: str, port: int) -> x509.Certificate:
    # Only the dates are examined: clients may trust an authority that this machine does not.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    with (
        socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=domain) as secured,
    ):
        return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")


async def check_domain(installation: ExaminedInstallation) -> AsyncIterator[Finding]:
    """Check that the domain leads to this machine."""
    if installation.front.domain is None:
        return

    level = fault if installation.front.tls == "acme" else warning
    loop = asyncio.get_running_loop()
    try:
        entries = await loop.getaddrinfo(installation.front.domain, 443, type=socket.SOCK_STREAM)
    except OSError as exc:
        do = "add an A or AAAA record with the address of this machine at your DNS provider"
        yield level("domain", f"{installation.front.domain} has no address: {exc}", do)
        return

    addresses = sorted({str(address[4][0]) for address in entries})
    if not any(_is_of_this_machine(address) for address in addresses):
        yield warning(
            "domain",
            f"{installation.front.domain} leads to {', '.join(addresses)}, which no interface of this machine has",
            "fine behind a NAT or a proxy; otherwise correct the DNS record",
        )

        return

    yield fine("domain", f"{installation.front.domain} leads to this machine")


def _is_of_this_machine(address: str) -> bool:
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False

    return True


async def check_proxy(installation: ExaminedInstallation) -> AsyncIterator[Finding]:
    """Check that the proxy in front of the platform passes on the host, the scheme and the client's address."""
    key = _read_key(installation.home / "api-key")
    if installation.public_url is None or key is None or find_lock_holder(installation.home) is None:
        return

    if installation.front.domain and installation.front.tls == "off" and not installation.trusted_proxies:
        yield fault(
            "proxy",
            "TLS is off, so another proxy is in front of the platform, and TRUSTED_PROXIES names none",
            "set TRUSTED_PROXIES to the proxy's address, or all clients share its limits and links begin with http",
        )

    trust = os.environ.get("PORTSIDE_CA_FILE")
    context = ssl.create_default_context(cafile=trust) if trust else True
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=context) as client:
            headers = {"X-Api-Key": key, "X-Forwarded-For": _CLAIMED, "X-Forwarded-Host": _CLAIMED}
            response = await client.get(installation.public_url + str(_PROBED), headers=headers)
            request = response.raise_for_status().json()
    except (httpx2.HTTPError, ValueError, OSError) as exc:
        do = "fine where this machine cannot reach its own public address; otherwise see the proxy's log"
        yield warning("proxy", f"{installation.public_url} does not answer from here: {exc}", do)
        return

    do = "use the configuration of 'portside ingress print nginx|caddy|traefik'"
    host = httpx2.URL(installation.public_url).netloc.decode()
    if request["host"] != host:
        yield fault("proxy", f"the proxy passes the Host header {request['host']}, and {host} was requested", do)

    if installation.front.tls == "off" and request["scheme"] != "https":
        yield fault("proxy", "the platform sees http: no X-Forwarded-Proto, or TRUSTED_PROXIES lacks the proxy", do)

    if request["client"] == _CLAIMED:
        yield fault("proxy", "the proxy passes on the X-Forwarded-For of clients: anybody may claim any address", do)

    yield fine("proxy", f"{installation.public_url} answers, and sees this machine as {request['client']}")


async def check_sign_in(installation: ExaminedInstallation) -> AsyncIterator[Finding]:
    """Check that the OpenID Connect provider answers."""
    if installation.oidc_issuer is None:
        return

    address = f"{installation.oidc_issuer.rstrip('/')}/.well-known/openid-configuration"
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=True) as client:
            issuer = (await client.get(address)).raise_for_status().json()["issuer"]
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as exc:
        yield fault("sign-in", f"nobody can sign in: {address}: {exc}", "check OIDC_ISSUER, and the network")
        return

    if issuer.rstrip("/") != installation.oidc_issuer.rstrip("/"):
        yield fault("sign-in", f"the provider names itself {issuer}", f"set OIDC_ISSUER={issuer}")

    yield fine("sign-in", f"{installation.oidc_issuer} answers")


def _read_key(file: Path) -> str | None:
    try:
        return file.read_text("utf-8").strip() or None
    except OSError:
        return None


SERVICE_CHECKS: dict[str, AsyncCheck] = {
    "platform": check_platform,
    "database": check_database,
    "certificates": check_certificates,
    "domain": check_domain,
    "proxy": check_proxy,
    "sign-in": check_sign_in,
}
