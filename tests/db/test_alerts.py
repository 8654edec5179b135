"""Alerts in their database: which messages begin and end them, what a silence holds back, and what is sent again."""

import asyncio
import contextlib
import smtplib
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from portside.alerts import alerts
from portside.alerts.alerts import KEPT, OldAlerts, judge
from portside.alerts.channels import AlertChannels, AlertDeliveries, ChannelTarget, MailServer, Message
from portside.alerts.rules import ENDS_AFTER_S, Measurement
from portside.alerts.sql import sql
from portside.alerts.types import AlertQuery, ChannelRequest, RulePatch, SilenceRequest
from portside.kernel.clock import now
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.outbound import OutboundRules
from tests.conftest import eventually
from tests.receiver import Receiver, serve
from tests.tcp_server import serve_connections

PACKAGES = ("portside.identity", "portside.alerts")

RULE = "certificate_expiring"
# A receiver of this process, which answers late while the machine is busy.
RECEIVER_HERE = OutboundRules(allow_loopback=True, timeout_s=100.0)
BEGAN = now()


async def days_left(db: Database, days: float | None, minutes: float) -> int:
    """Judge a certificate that ends in some days, or that is gone; return how many messages were queued."""
    found = [] if days is None else [Measurement("example.com", "example.com", days, "soon")]
    return await judge(db, {RULE: found}, BEGAN + timedelta(minutes=minutes))


async def list_open_alerts(db: Database) -> list[alerts.Alert]:
    return await alerts.list_alerts(db, AlertQuery("open"))


async def test_an_alert_is_not_repeated_and_ends_after_a_while(db: Database) -> None:
    await alerts.update_rule(db, RULE, RulePatch(for_s=120))
    days = [(0, 20), (1, 13), (2, 13), (3, 13), (4, 12), (5, 15), (6, 30), (6.5, 13), (7, 30)]
    assert [await days_left(db, value, minutes) for minutes, value in days] == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert len(await list_open_alerts(db)) == 1
    assert await days_left(db, 30, 7 + ENDS_AFTER_S / 60) == 1
    assert await list_open_alerts(db) == []
    (ended,) = await alerts.list_alerts(db, AlertQuery("ended"))
    assert ended.ended_at == BEGAN + timedelta(minutes=7 + ENDS_AFTER_S / 60)

    assert await days_left(db, 30, 20) == 0


async def test_of_two_platforms_one_begins_an_alert(db: Database) -> None:
    """The other one waits, and finds it begun."""
    async with db.transaction() as tx:
        await tx.execute(sql.lock_alerts)
        both = [asyncio.create_task(days_left(db, 1, 0)) for _ in range(2)]

        async def wait() -> bool:
            here = "datname = current_database() and wait_event_type = 'Lock'"
            return await db.pool.fetchval(f"select count(*) from pg_stat_activity where {here}") == 2

        await eventually(wait)

    assert sorted(await asyncio.gather(*both)) == [0, 1]
    assert len(await list_open_alerts(db)) == 1


async def test_a_condition_that_passes_is_forgotten(db: Database) -> None:
    await alerts.update_rule(db, RULE, RulePatch(for_s=120))
    assert [await days_left(db, value, minutes) for minutes, value in [(0, 13), (1, 20)]] == [0, 0]
    assert await db.pool.fetchval("select count(*) from alerts") == 0


async def test_silenced_alert_is_sent_when_the_silence_ends(db: Database) -> None:
    silence = await alerts.create_silence(db, SilenceRequest(RULE, 1, subject="example.com"))
    await alerts.create_silence(db, SilenceRequest(RULE, 1, subject="another.example"))
    assert await days_left(db, 1, 0) == 0
    assert [alert.is_silenced for alert in await list_open_alerts(db)] == [True]
    await alerts.delete_silence(db, silence.id)
    assert await days_left(db, 1, 1) == 1
    assert await days_left(db, None, 2) == 1, "its subject is gone"


async def test_alert_without_a_sent_message_ends_silently(db: Database) -> None:
    await alerts.create_silence(db, SilenceRequest(RULE, 1))
    assert [await days_left(db, value, minutes) for minutes, value in [(0, 1), (1, None)]] == [0, 0]
    assert [alert.notified_at for alert in await alerts.list_alerts(db, AlertQuery())] == [None]


async def test_what_cannot_be_measured_changes_nothing(db: Database) -> None:
    assert await days_left(db, 1, 0) == 1
    assert await judge(db, {}, BEGAN + timedelta(hours=1)) == 0
    assert len(await list_open_alerts(db)) == 1


async def test_a_rule_that_is_switched_off_ends_its_alerts(db: Database) -> None:
    assert await days_left(db, 1, 0) == 1
    await alerts.update_rule(db, RULE, RulePatch(is_enabled=False))
    assert await days_left(db, 1, 1) == 1
    assert await days_left(db, 1, 2) == 0
    assert await list_open_alerts(db) == []


async def test_a_message_that_was_refused_is_sent_again_and_in_order(db: Database, tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.status = 503
    box = SecretBox.from_file(tmp_path / "key")

    channels = AlertChannels(db, box, RECEIVER_HERE, None)
    task = AlertDeliveries(channels)
    async with serve(receiver) as url:
        await channels.add(db, ChannelRequest("webhook", "later", url=url))
        await days_left(db, 1, 0)
        await days_left(db, None, 1)
        await task.activate()
        assert [each["type"] for each in receiver.messages()] == ["firing"], "the end waits for the beginning"
        assert [each.last_delivered_at for each in await channels.list_all()] == [None]
        assert [each.last_error for each in await channels.list_all()] == ["the receiver answered 503"]

        # Its pause of some seconds would be over on a busy machine.
        await db.pool.execute("update alert_deliveries set next_at = next_at + interval '1 minute' where attempts > 0")
        assert (await task.activate()).did == {"sent": 0}, "not before its pause is over"
        receiver.status = 204

        async def both() -> bool:
            await db.pool.execute("update alert_deliveries set next_at = now() where next_at is not null")
            await task.activate()
            return receiver.messages()[-1]["type"] == "ended"

        await eventually(both)

    assert [each["type"] for each in receiver.messages()] == ["firing", "firing", "ended"]
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert ids[0] == ids[1] != ids[2], "a repeated message has the id of the first"
    (delivered,) = await channels.list_all()
    assert delivered.last_error is None
    await judge(db, {RULE: [Measurement("example.org", "example.org", 1, "soon")]}, BEGAN + timedelta(hours=1))
    await task.activate()

    (failed,) = await channels.list_all()
    assert failed.last_error
    assert failed.last_delivered_at == delivered.last_delivered_at, "the last message that arrived"


async def test_message_that_is_refused_again_and_again_is_given_up(db: Database, tmp_path: Path) -> None:
    """The pauses double, up to four hours."""
    receiver = Receiver()
    receiver.status = 302
    box = SecretBox.from_file(tmp_path / "key")
    task = AlertDeliveries(AlertChannels(db, box, RECEIVER_HERE, None))

    async def pause_after(attempts: int) -> tuple[float, float] | None:
        """Send the message once more after so many attempts; the least and the greatest pause before the next one."""
        await db.pool.execute("update alert_deliveries set next_at = now(), attempts = $1", attempts)
        before = await db.pool.fetchval("select clock_timestamp()")
        await task.activate()
        after = await db.pool.fetchval("select clock_timestamp()")
        next_at = await db.pool.fetchval("select next_at from alert_deliveries")
        return next_at and ((next_at - after).total_seconds(), (next_at - before).total_seconds())

    async with serve(receiver) as url:
        await task._channels.add(db, ChannelRequest("webhook", "never", url=url))
        await days_left(db, 1, 0)
        for attempts, pause_s in ((0, 5), (1, 10), (2, 20), (10, 5120), (12, 14_400), (18, 14_400)):
            pause = await pause_after(attempts)
            assert pause is not None and pause[0] <= pause_s <= pause[1], attempts

        assert await pause_after(19) is None
        assert (await task.activate()).did == {"sent": 0}

    assert [each.last_error for each in await task._channels.list_all()] == ["the receiver answered 302"]


async def test_message_that_somebody_sends_is_not_taken_by_another(db: Database, tmp_path: Path) -> None:
    channels = AlertChannels(db, SecretBox.from_file(tmp_path / "key"), OutboundRules(), None)
    await channels.add(db, ChannelRequest("webhook", "one", url="https://example.com/"))
    await days_left(db, 1, 0)
    values = {"limit": 10, "claim_s": 120.0, "first_pause_s": 5.0, "longest_pause_s": 14_400.0}
    taken = [len(await db.fetch(sql.claim_deliveries, **values)) for _ in range(2)]
    assert taken == [1, 0]

    # Whoever took it has died.
    await db.pool.execute("update alert_deliveries set next_at = next_at - interval '121 seconds'")
    (again,) = await db.fetch(sql.claim_deliveries, **values)
    assert again["attempts"] == 2


@pytest.mark.parametrize(
    ("target", "label"),
    [
        (ChannelTarget(url="https://me:passw0rd@chat.example:8443/hooks/T0K3N"), "chat.example:8443/…"),
        (ChannelTarget(url="https://chat.example?key=T0K3N"), "chat.example/…"),
        (ChannelTarget(to=["a@example.com", "b@example.com"]), "a@example.com, b@example.com"),
    ],
)
def test_label_of_a_channel_has_no_secret(target: ChannelTarget, label: str) -> None:
    assert target.label == label


async def test_clock_that_was_set_back_holds_up_nothing(db: Database, tmp_path: Path) -> None:
    receiver = Receiver()
    task = AlertDeliveries(AlertChannels(db, SecretBox.from_file(tmp_path / "key"), RECEIVER_HERE, None))

    async with serve(receiver) as url:
        await task._channels.add(db, ChannelRequest("webhook", "later", url=url))
        await alerts.update_rule(db, RULE, RulePatch(for_s=120))

        # An hour later by a clock that was then set back: what waited since then waits from now on.
        assert [await days_left(db, 1, minutes) for minutes in (60, 0, 2)] == [0, 0, 1]
        await db.pool.execute("update alert_deliveries set next_at = now() + interval '1 hour'")
        await task.activate()
        assert [each["type"] for each in receiver.messages()] == ["firing"]

        # The end, too: its minute begins anew.
        assert [await days_left(db, 30, minutes) for minutes in (60, 3, 4)] == [0, 0, 1]
        receiver.status = 503
        await task.activate()
        await db.pool.execute(
            "update alert_deliveries set next_at = now() + interval '1 hour' where next_at is not null"
        )
        await task.activate()

        # A pause of an hour after many attempts is one.
        await db.pool.execute(
            "update alert_deliveries set next_at = now() + interval '1 hour', attempts = 12 where next_at is not null"
        )
        assert (await task.activate()).did == {"sent": 0}

    assert [each["type"] for each in receiver.messages()] == ["firing", "ended", "ended"]


async def test_mail_server_that_does_not_answer_holds_up_nothing_else(db: Database, tmp_path: Path) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    connected = asyncio.Event()
    closed = asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        connected.set()
        await closed.wait()

    async with serve_connections(say_nothing) as port:
        mail = MailServer("127.0.0.1", port, "portside@example.com", "off")
        channels = AlertChannels(db, SecretBox.from_file(tmp_path / "key"), OutboundRules(), mail)
        message = Message("test", "Test", "It works.", {})
        sending = asyncio.create_task(channels.send("mail", ChannelTarget(to=["ada@example.com"]), "1", message))

        await connected.wait()
        assert await asyncio.to_thread(lambda: "done") == "done"
        assert not sending.done()
        closed.set()
        assert "127.0.0.1" in str(await sending)


class SentMail:
    """Stands in for the connection to a mail server, and notes what is done with it."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def connect(self, kind: str) -> Any:
        def begin(host: str, port: int, **options: Any) -> Any:
            self.steps.append((kind, host, port, isinstance(options.get("context"), ssl.SSLContext)))
            return contextlib.nullcontext(self)

        return begin

    def starttls(self, *, context: ssl.SSLContext) -> None:
        self.steps.append(("starttls", context.verify_mode == ssl.CERT_REQUIRED))

    def login(self, user: str, password: str) -> None:
        self.steps.append(("login", user, password))

    def send_message(self, mail: EmailMessage) -> None:
        self.steps.append(mail)


@pytest.mark.parametrize(
    ("tls", "user", "steps"),
    [
        ("starttls", "me", [("SMTP", "mail", 587, False), ("starttls", True), ("login", "me", "secret")]),
        ("tls", "me", [("SMTP_SSL", "mail", 587, True), ("login", "me", "secret")]),
        ("off", None, [("SMTP", "mail", 587, False)]),
    ],
)
async def test_mail_is_encrypted_before_anybody_logs_in(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: Any, user: str | None, steps: list[Any]
) -> None:
    sent = SentMail()
    for kind in ("SMTP", "SMTP_SSL"):
        monkeypatch.setattr(smtplib, kind, sent.connect(kind))

    server = MailServer("mail", 587, "portside@example.com", tls, user, "secret")
    channels = AlertChannels(db, SecretBox.from_file(tmp_path / "key"), OutboundRules(), server)
    message = Message("firing", "[alert] disk_used: two\r\nBcc: lines@example.com", "It is full.", {})
    target = ChannelTarget(to=["a@example.com", "b@example.com"])
    assert await channels.send("mail", target, "an-id", message) is None

    *others, mail = sent.steps
    assert others == steps
    assert (mail["To"], mail["Bcc"]) == ("a@example.com, b@example.com", None)
    assert mail["Subject"] == "[alert] disk_used: two Bcc: lines@example.com"


async def test_channel_added_later_gets_no_end_message(db: Database, tmp_path: Path) -> None:
    channels = AlertChannels(db, SecretBox.from_file(tmp_path / "key"), RECEIVER_HERE, None)
    assert await days_left(db, 1, 0) == 1
    await channels.add(db, ChannelRequest("webhook", "late", url="https://example.com/"))
    await days_left(db, None, 1)
    assert (await AlertDeliveries(channels).activate()).did == {"sent": 0}


async def test_alerts_and_silences_expire_when_they_ended_long_ago(db: Database) -> None:
    for name, minutes in (("one", 0), ("two", 10)):
        await judge(db, {RULE: [Measurement(name, name, 1)]}, BEGAN + timedelta(minutes=minutes))
        await judge(db, {RULE: []}, BEGAN + timedelta(minutes=minutes + 1))

    await judge(db, {RULE: [Measurement("open", "open", 1)]}, BEGAN)
    await alerts.create_silence(db, SilenceRequest(RULE, 1))
    await db.pool.execute("update alerts set ended_at = $1 where subject = 'one'", now() - KEPT)
    await db.pool.execute("update alert_silences set until = $1", now() - KEPT)

    task = OldAlerts(db)
    assert task.deletes, "the log says what it deleted"
    assert (await task.activate()).did == {"alerts": 1, "silences": 1}
    assert (await task.activate()).did == {"alerts": 0, "silences": 0}
    assert {row["subject"] for row in await db.pool.fetch("select subject from alerts")} == {"two", "open"}
