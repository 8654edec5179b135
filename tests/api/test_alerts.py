"""Alerts of a real platform: sent once when they begin and when they end, by signed webhooks and by mail over TLS."""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from email import message_from_bytes
from email.policy import default
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword
from structlog.testing import capture_logs

from portside.alerts import rules
from portside.alerts.channels import AlertChannels
from portside.alerts.rules import RULES, MeasuredParts, Measurement, Measurements, fetch_certificate_end
from portside.backup.history import Attempt, record_attempt
from portside.ingress.options import FrontOptions
from portside.kernel import outbound
from portside.kernel.clock import now
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.outbound import OutboundRules
from portside.platform import services
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.maintenance import rotate_master_key
from portside.platform.settings import PlatformSettings
from tests.api.control_server import create_body
from tests.commands import run_here
from tests.conftest import eventually
from tests.receiver import Receiver, serve
from tests.tcp_server import serve_connections
from tests.unit.test_kernel_outbound import certificate

pytestmark = pytest.mark.asyncio(loop_scope="module")
EXAMPLE = Path(__file__).parents[2] / "examples" / "alert-receiver" / "receiver.py"
PASSWORD = "a password of the mail server"


class Mailbox:
    """What a mail server does with the mail that it accepts."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    async def handle_DATA(self, _server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - the library's name
        self.got.append((session.ssl is not None, session.auth_data, envelope.rcpt_tos, envelope.content))
        return "250 OK"

    def find(self, name: str) -> list[Any]:
        """Return the mails about the failure of a deployment."""
        subject = f"deployment_failed: {name} ("
        return [mail for mail in self.got if subject in message_from_bytes(mail[-1], policy=default)["subject"]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A certificate of localhost that this process trusts, as a company's own would be."""
    folder = tmp_path_factory.mktemp("tls")
    file = certificate(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        outbound.get_ssl_context.cache_clear()
        yield file

    outbound.get_ssl_context.cache_clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mail_server(authority: Path) -> AsyncIterator[tuple[Mailbox, int]]:
    """A mail server that accepts mail only over TLS and from who logs in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority)
    mailbox = Mailbox()

    def log_in(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: LoginPassword) -> AuthResult:
        return AuthResult(success=data.password == PASSWORD.encode(), auth_data=data.login)

    def connected() -> SMTP:
        return SMTP(mailbox, tls_context=context, require_starttls=True, authenticator=log_in, auth_required=True)

    server = await asyncio.get_running_loop().create_server(connected, "localhost", 0)
    yield mailbox, server.sockets[0].getsockname()[1]
    server.close()


class Watched:
    """A running platform that judges its alerts every tenth of a second, and what it calls and mails."""

    def __init__(self, url: str, key: str, listener_key: str, db: Database, mail: Mailbox, home: Home) -> None:
        self.url = url
        self.key = key
        self.db = db
        self.mail = mail
        self.home = home
        self.client = httpx2.AsyncClient(base_url=url, headers={"x-api-key": key}, timeout=300)
        self.listener = httpx2.AsyncClient(base_url=url, headers={"x-api-key": listener_key}, timeout=300)

    async def call(self, method: str, path: str, **body: Any) -> Any:
        response = await self.client.request(method, path, json=body or None)
        assert response.is_success, response.text
        return response.json() if response.content else None

    async def open_alerts(self, rule: str) -> list[Any]:
        found = (await self.client.get("/alerts", params={"status": "open"})).json()
        return [each for each in found if each["rule"] == rule]


class Undone(Exception):
    """Ends a transaction whose changes are not to be kept."""


@pytest.fixture(scope="module")
def patience() -> Iterator[None]:
    """Let the platform wait long for receivers, which are in this process and stand still whenever it does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "OutboundRules", partial(OutboundRules, timeout_s=600))
        patch.setattr(rules, "CONNECT_S", 600)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(
    platform_database: str, tmp_path_factory: Any, mail_server: Any, patience: None
) -> AsyncIterator[Watched]:
    mailbox, port = mail_server
    settings = PlatformSettings(
        rate_limits=False,
        alert_check_s=0.1,
        alert_private_hosts=True,
        smtp_host="localhost",
        smtp_port=port,
        smtp_from="portside@example.com",
        smtp_user="portside",
        smtp_password=PASSWORD,
    )

    home = Home(tmp_path_factory.mktemp("home"))
    async with open_platform(home, settings, platform_database) as app, serve(app.asgi) as url:
        db = await Database.connect(platform_database)
        assert app.new_key is not None
        opened = Watched(url, app.new_key, app.listener_key, db, mailbox, home)
        yield opened
        await opened.client.aclose()
        await opened.listener.aclose()
        await db.close()

        app.changes.close()


def check_signature(secret: str, headers: dict[str, str], body: bytes) -> None:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


async def fail_a_deployment(platform: Watched, name: str) -> tuple[str, str]:
    """Create a deployment whose revision cannot be built; its id and that of the revision."""
    body = {"compute_type": "process", "compute_id": "local"}
    assert (await platform.listener.post("/internal/listeners/connect", json=body)).is_success
    made = await platform.call("POST", "/v2/deployments", **create_body(name))
    await report(platform, made["id"], made["latest_revision_id"], "AWAITING_BUILD", "BUILDING", "BUILD_FAILED")
    return made["id"], made["latest_revision_id"]


async def report(platform: Watched, deployment: str, revision: str, *statuses: str) -> None:
    path = f"/internal/deployments/{deployment}/revisions/{revision}/status"
    for status in statuses:
        response = await platform.listener.put(path, json={"status": status, "reason": "no module named agent"})
        assert response.status_code == 204, response.text


def find_calls(receiver: Receiver, subject: str | None = None) -> list[tuple[dict[str, str], bytes]]:
    """Return the calls about one subject, or those that test a channel.

    The platform may judge later what an earlier test did, and then calls the channels of this one.
    """
    return [call for call in receiver.got if json.loads(call[1])["alert"].get("subject") == subject]


async def test_failed_deployment_sends_one_message_at_its_begin_and_end(platform: Watched) -> None:
    receiver = Receiver()
    async with serve(receiver) as url:
        webhook = await platform.call(
            "POST", "/alerts/channels", kind="webhook", name="chat", url=f"{url}/hooks/secret"
        )
        mail = await platform.call("POST", "/alerts/channels", kind="mail", name="mail", to=["ops@example.com"])
        deployment, _ = await fail_a_deployment(platform, "fails")

        async def are_sent(count: int) -> bool:
            return len(find_calls(receiver, deployment)) >= count and len(platform.mail.find("fails")) >= count

        await eventually(lambda: are_sent(1))
        (call,) = find_calls(receiver, deployment)
        first = json.loads(call[1])
        assert first["type"] == "firing"
        assert (first["alert"]["rule"], first["alert"]["subject"]) == ("deployment_failed", deployment)
        assert first["text"].startswith("[alert] deployment_failed: fails (")
        assert "no module named agent" in first["text"]

        check_signature(webhook["secret"], *call)
        ((is_tls, user, to, content),) = platform.mail.find("fails")
        assert (is_tls, user, to) == (True, b"portside", ["ops@example.com"])
        mailed = message_from_bytes(content, policy=default)
        assert mailed["subject"].startswith("[alert] deployment_failed: fails (")
        assert mailed["from"] == "portside@example.com"
        assert "no module named agent" in mailed.get_content()

        count = "select count(*) from alerts where rule = 'deployment_failed' and subject = $1"
        judged = await platform.db.pool.fetchval(count, deployment)
        revision = await platform.call("POST", f"/v2/deployments/{deployment}/revisions", secrets=[])
        await report(
            platform,
            deployment,
            revision["id"],
            "AWAITING_BUILD",
            "BUILDING",
            "AWAITING_DEPLOY",
            "DEPLOYING",
            "DEPLOYED",
        )

        await eventually(lambda: are_sent(2))
        assert judged == 1
        messages = [json.loads(body) for _, body in find_calls(receiver, deployment)]
        assert [each["type"] for each in messages] == ["firing", "ended"]
        assert messages[1]["alert"]["id"] == first["alert"]["id"]
        assert deployment not in [each["subject"] for each in await platform.open_alerts("deployment_failed")]

        for channel in (webhook, mail):
            await platform.call("DELETE", f"/alerts/channels/{channel['id']}")


async def test_a_channel_shows_no_secret_and_says_why_it_fails(platform: Watched) -> None:
    receiver = Receiver()
    receiver.status = 500
    async with serve(receiver) as url:
        made = await platform.call("POST", "/alerts/channels", kind="webhook", name="broken", url=f"{url}/hooks/T0K3N")
        result = await platform.call("POST", f"/alerts/channels/{made['id']}/test")
        assert result == {"is_delivered": False, "error": "the receiver answered 500"}
        receiver.status = 200
        assert (await platform.call("POST", f"/alerts/channels/{made['id']}/test"))["is_delivered"] is True
        _, tested = find_calls(receiver)
        assert json.loads(tested[1])["text"] == "Test of the alert channel broken\nIt works."
        check_signature(made["secret"], *tested)

    shown = json.dumps(await platform.call("GET", "/alerts/channels"))
    assert "T0K3N" not in shown
    assert made["secret"] not in shown
    stored = await platform.db.pool.fetchval("select string_agg(alert_channels::text, '') from alert_channels")
    assert "T0K3N" not in stored
    taken = await platform.client.post(
        "/alerts/channels", json={"kind": "webhook", "name": "broken", "url": "https://a.b"}
    )
    assert taken.status_code == 409

    for body in (
        {"kind": "webhook"},
        {"kind": "mail", "url": "https://a.b"},
        {"kind": "webhook", "url": "ftp://a.b"},
        {"kind": "mail", "to": []},
    ):
        response = await platform.client.post("/alerts/channels", json={"name": "x", **body})
        assert response.status_code == 422, body

    await platform.call("DELETE", f"/alerts/channels/{made['id']}")

    for method, path in (("DELETE", ""), ("POST", "/test")):
        assert (await platform.client.request(method, f"/alerts/channels/{made['id']}{path}")).status_code == 404


async def test_alerts_are_for_those_who_manage_the_organization(platform: Watched) -> None:
    made = await platform.call(
        "POST", "/api-key", description="reads", permissions=["deployments:*", "workspaces:read"]
    )

    for path in ("/alerts", "/alerts/rules", "/alerts/channels", "/alerts/silences"):
        assert (await platform.client.get(path, headers={"x-api-key": made["key"]})).status_code == 403, path


async def test_the_command_line_adds_tests_and_silences(platform: Watched) -> None:
    async def portside(*arguments: str, code: int = 0) -> str:
        with capture_logs():
            done = await asyncio.to_thread(run_here, *arguments, "--url", platform.url, "--api-key", platform.key)

        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    receiver = Receiver()
    async with serve(receiver) as url:
        assert (await portside("alerts", "add", f"{url}/x", "--name", "cli")).startswith("whsec_")
        assert (await portside("alerts", "test", "cli")).strip() == "delivered"
        assert "cli" in await portside("alerts", "channels")
        receiver.status = 410
        assert "answered 410" in await portside("alerts", "test", "cli", code=1)

    assert "disk_used" in await portside("alerts", "rules")
    await portside("alerts", "set", "error_rate", "--threshold", "10", "--for", "30")
    await portside("alerts", "set", "limit_used", "--off")
    rules = {each["name"]: each for each in await platform.call("GET", "/alerts/rules")}
    assert (rules["error_rate"]["threshold"], rules["error_rate"]["for_s"]) == (10, 30)
    assert (rules["limit_used"]["is_enabled"], rules["limit_used"]["is_default"]) == (False, False)
    assert "is not a rule" in await portside("alerts", "silence", "no_such_rule", code=1)

    assert "silent until" in await portside("alerts", "silence", "disk_used", "--hours", "1")
    assert [each["rule"] for each in await platform.call("GET", "/alerts/silences")] == ["disk_used"]
    await portside("alerts", "silence", "disk_used", "--end")
    assert await platform.call("GET", "/alerts/silences") == []
    await portside("alerts", "remove", "cli")
    await portside("alerts", "list", "--all")


async def test_private_addresses_are_refused_unless_they_are_allowed(platform: Watched) -> None:
    made = await platform.call("POST", "/alerts/channels", kind="webhook", name="inside", url="http://127.0.0.1:9/")
    strict = AlertChannels(platform.db, SecretBox.from_file(platform.home.master_key), OutboundRules(), None)
    for url in ("http://127.0.0.1:9/", "http://169.254.169.254/latest", "http://[::1]/", "http://10.0.0.1/"):
        sealed = strict._box.encrypt(json.dumps({"url": url, "secret": "whsec_AAAA"}).encode(), made["id"])
        await platform.db.pool.execute("update alert_channels set target_sealed = $1 where name = 'inside'", sealed)
        result = await strict.test(made["id"])
        assert result.is_delivered is False
        assert "to which this installation sends no requests" in (result.error or "")

    await platform.call("DELETE", f"/alerts/channels/{made['id']}")


async def test_measurements_of_a_real_platform(platform: Watched, authority: Path) -> None:
    body = {"compute_type": "process", "compute_id": "local"}
    listener = (await platform.listener.post("/internal/listeners/connect", json=body)).json()["listener_id"]
    made = await platform.call("POST", "/v2/deployments", **create_body("measured"))
    assert (await platform.listener.get(f"/internal/listeners/{listener}/desired")).is_success
    await platform.call("PUT", "/usage-limits", limit_type="monthly_traces", limit_value=40)

    for number in range(21):
        run = {
            "name": "r",
            "run_type": "chain",
            "inputs": {},
            "session_name": "measured",
            "start_time": now().isoformat(),
        }

        ended = {"end_time": now().isoformat(), "error": "failed" if number % 3 == 0 else None}
        await platform.call("POST", "/runs", id=str(uuid4()), **run, **ended)

    path = f"/internal/deployments/{made['id']}/metrics"
    parts = MeasuredParts(
        platform.db,
        platform.home.path,
        None,
        None,
        # A backup that failed has a rule of its own.
        {"front": lambda: "it is down", "other": lambda: None, "backup": lambda: "the last one failed"},
    )
    measurements = Measurements(parts)

    async def take(**report: Any) -> dict[str, list[Measurement]]:
        assert (await platform.listener.put(path, json=report)).is_success
        found = await measurements.take()
        mine = {rule: [one for one in all_ if one.subject == made["id"]] for rule, all_ in found.items()}
        return {**found, **{rule: one for rule, one in mine.items() if rule.startswith(("deploy", "queue", "error"))}}

    await take(replicas=1, restarts=2)
    found = await take(replicas=1, restarts=5, oldest_wait_s=400, pending_runs=7, problem="a replica is missing")
    assert found.keys() == RULES.keys()
    assert [one.value for one in found["deployment_restarting"]] == [3]
    assert [(one.value, one.detail) for one in found["queue_waiting"]] == [(400, "7 runs wait")]
    assert [one.detail for one in found["deployment_degraded"]] == ["a replica is missing"]
    assert [(one.value, one.detail) for one in found["error_rate"]] == [(33.3, "7 of 21 traces")]
    assert [(one.subject, one.detail) for one in found["part_down"]] == [("front", "it is down")]

    # A failure of earlier is none of the last minutes.
    await platform.db.pool.execute("update runs set start_time = now() - interval '1 day' where error is not null")
    later = await Measurements(parts)._error_rates()
    assert [(one.value, one.detail) for one in later if one.subject == made["id"]] == [(0, "0 of 21 traces")]

    (limit,) = [one for one in found["limit_used"] if not one.name.endswith("Measured limits")]
    assert limit.value > 50
    (disk,) = found["disk_used"]
    assert 0 <= disk.value <= 100
    assert found["data_refused"][0].value == 0

    # One that cannot be restored has no metrics, and its listener says why.
    status_path = f"/internal/deployments/{made['id']}/status"
    down = {"status": "UNKNOWN", "reason": "its namespace is missing"}
    assert (await platform.listener.put(status_path, json=down)).is_success
    found = await take(replicas=0, restarts=5)
    assert [one.detail for one in found["deployment_degraded"]] == ["its namespace is missing"]
    assert all(one.value < 600 for one in found["listener_silent"])
    assert (await take(replicas=1, restarts=1))["deployment_restarting"][0].value == 0, "the listener counts anew"

    # A report of earlier says nothing of now.
    await take(replicas=1, oldest_wait_s=400)
    await platform.db.pool.execute("update deployment_metrics set measured_at = now() - interval '3 minutes'")
    assert (await measurements.take())["queue_waiting"] == []

    body = {"compute_type": "process", "compute_id": "without deployments"}
    idle = (await platform.listener.post("/internal/listeners/connect", json=body)).json()["listener_id"]
    await platform.db.pool.execute("update listeners set last_seen_at = now() - interval '10 minutes'")
    silent = {one.subject: one.value for one in (await measurements.take())["listener_silent"]}
    assert silent[listener] >= 600
    assert idle not in silent, "nobody waits for it"


async def test_failed_deployment_that_is_deleted_is_no_failure_any_more(platform: Watched) -> None:
    deployment, _ = await fail_a_deployment(platform, "fails-and-goes")
    measurements = Measurements(MeasuredParts(platform.db, platform.home.path, None, None, {}))
    assert deployment in [one.subject for one in await measurements._failed_deployments()]
    await platform.call("DELETE", f"/v2/deployments/{deployment}")
    assert deployment not in [one.subject for one in await measurements._failed_deployments()]


@pytest.mark.parametrize(
    ("status", "is_failure"),
    [("CREATE_FAILED", True), ("BUILD_FAILED", True), ("DEPLOY_FAILED", True), ("INTERRUPTED", False)],
)
async def test_a_revision_fails_in_each_of_its_steps(platform: Watched, status: str, *, is_failure: bool) -> None:
    made = await platform.call("POST", "/v2/deployments", **create_body(f"ends-{status.lower().replace('_', '-')}"))
    change = "update revisions set status = $1 where deployment_id = $2::text::uuid"
    found: list[str] = []

    async def measure() -> None:
        async with platform.db.transaction() as tx:
            await tx.connection.execute(change, status, made["id"])
            parts = MeasuredParts(tx, platform.home.path, None, None, {})  # type: ignore[arg-type]
            found.extend(one.subject for one in await Measurements(parts)._failed_deployments())
            raise Undone

    # Nobody else sees the failure, of which the platform would send messages to the channels of other tests.
    with pytest.raises(Undone):
        await measure()

    assert (made["id"] in found) == is_failure


async def test_only_what_counts_for_a_monthly_limit_is_measured(platform: Watched) -> None:
    """Not what was imported, nor what is of an earlier month, nor what is kept shortly for the limit of the others."""
    made = await platform.call("POST", "/workspaces", display_name="Measured limits")
    headers = {"x-tenant-id": made["id"]}
    ids = [str(uuid4()) for _ in range(4)]
    for number in ids:
        body = {"id": number, "name": "r", "run_type": "chain", "inputs": {}, "session_name": "p"}
        assert (await platform.client.post("/runs", json=body, headers=headers)).is_success

    for kind, value in (("monthly_traces", 8), ("monthly_longlived_traces", 4)):
        body = {"limit_type": kind, "limit_value": value}
        assert (await platform.client.put("/usage-limits", json=body, headers=headers)).is_success

    async def measure() -> list[float]:
        found = await Measurements(MeasuredParts(platform.db, platform.home.path, None, None, {}))._limits()
        mine = {one.name: one.value for one in found if one.name.endswith("Measured limits")}
        return [mine[f"{kind} of Measured limits"] for kind in ("monthly_traces", "monthly_longlived_traces")]

    async def change(number: int, assignment: str) -> None:
        found = "update traces set {} where workspace_id = $1::text::uuid and trace_id = $2::text::uuid"
        await platform.db.pool.execute(found.format(assignment), made["id"], ids[number])

    assert await measure() == [50, 100]
    await change(0, "is_imported = true")
    assert await measure() == [37.5, 75]
    await change(1, "received_at = received_at - interval '40 days'")
    assert await measure() == [25, 50]
    await change(2, "tier = 'shortlived'")
    assert await measure() == [25, 25]
    await platform.db.pool.execute(
        "update usage_limits set limit_value = 0 where workspace_id = $1::text::uuid", made["id"]
    )
    assert await measure() == [100, 100]


async def test_failed_and_old_backups_are_measured(tmp_path: Path) -> None:
    parts = MeasuredParts(None, tmp_path, None, None, {}, timedelta(hours=24))  # type: ignore[arg-type]
    measurements = Measurements(parts)

    async def values() -> list[float]:
        found = await measurements._failed_backups() + await measurements._backup_age()
        return [each.value for each in found]

    assert await values() == []
    at = now() - timedelta(hours=36)
    attempt = {"ended_at": at, "location": "/backups", "name": "one", "is_scheduled": True}
    record_attempt(tmp_path, Attempt(started_at=at, size_bytes=1, **attempt))
    assert await values() == [150]
    record_attempt(tmp_path, Attempt(started_at=at + timedelta(hours=24), error="no room", **attempt))
    assert await values() == [1, 150]


async def test_the_end_of_a_certificate_is_read_from_the_server_that_shows_it(authority: Path, patience: None) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority)

    async def hang_up(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        pass

    async with serve_connections(hang_up, ssl=context) as port:
        assert await fetch_certificate_end("127.0.0.1", port, "localhost") > now()
        options = FrontOptions(domain="localhost", tls="files", https_port=port)
        parts = MeasuredParts(None, Path(), None, options, {})  # type: ignore[arg-type]
        (found,) = await Measurements(parts)._certificates()

    assert found.subject == "localhost"
    assert found.value > 0


async def test_a_new_master_key_encrypts_channels_again(platform_databases: Any, tmp_path: Path) -> None:
    home = Home(tmp_path)
    database = await platform_databases()
    settings = PlatformSettings(rate_limits=False, own_listener=False)
    async with open_platform(home, settings, database) as app, serve(app.asgi) as url:
        headers = {"x-api-key": app.new_key or ""}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=300) as client:
            body = {"kind": "webhook", "name": "kept", "url": "https://example.com/hook"}
            made = (await client.post("/alerts/channels", json=body)).json()

        app.changes.close()

    before = SecretBox.from_file(home.master_key).key_id
    await rotate_master_key(home, database)
    box = SecretBox.from_file(home.master_key)
    assert box.key_id != before
    db = await Database.connect(database)
    (channel,) = await AlertChannels(db, box, OutboundRules(), None).list_all()
    assert (str(channel.id), channel.target) == (made["id"], "example.com/…")

    await db.close()


async def test_the_example_of_a_receiver_accepts_our_messages_alone(platform: Watched) -> None:
    made = await platform.call("POST", "/alerts/channels", kind="webhook", name="example", url="http://127.0.0.1:1/")
    program = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), made["secret"], "0", stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None

    url = (await program.stdout.readline()).decode().split()[-1]
    try:
        box = SecretBox.from_file(platform.home.master_key)
        sealed = box.encrypt(json.dumps({"url": url, "secret": made["secret"]}).encode(), made["id"])
        await platform.db.pool.execute("update alert_channels set target_sealed = $1 where name = 'example'", sealed)
        assert (await platform.call("POST", f"/alerts/channels/{made['id']}/test"))["is_delivered"] is True

        line = b""
        while line != b"Test of the alert channel example\n":
            line = await program.stdout.readline()
            assert line, "the program ended"

        async with httpx2.AsyncClient() as anybody:
            assert (await anybody.post(url, json={"text": "not signed"})).status_code == 401

        for length in (b"2000000", b"-1"):
            reader, writer = await asyncio.open_connection(httpx2.URL(url).host, httpx2.URL(url).port)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n")
            async with asyncio.timeout(60):
                assert b" 413 " in await reader.readline()

            writer.close()
    finally:
        program.terminate()
        await program.wait()
        await platform.call("DELETE", f"/alerts/channels/{made['id']}")
