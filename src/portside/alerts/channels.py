"""Sends alerts, by webhook and by mail.

A webhook gets a signed POST (Standard Webhooks) with the alert and a `text` that chat programs show. It reaches public
addresses only, unless the operator allows private ones. A message that was not accepted is sent again, with growing
pauses, for about two days; its receiver may get it twice, with the same `webhook-id`.
"""

import asyncio
import base64
import secrets
import smtplib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from portside.alerts.rules import RULES
from portside.alerts.sql import sql
from portside.alerts.types import Channel, ChannelRequest, NewChannel, TestResult
from portside.kernel.clock import iso, now
from portside.kernel.codec import dump_api
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database, Record
from portside.kernel.errors import BadRequest, Conflict, Invalid, NotFound, UserMistake
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger
from portside.kernel.outbound import (
    AddressNotAllowed,
    HostUnknown,
    HostUnreachable,
    OutboundRules,
    build_signature_headers,
    get_ssl_context,
    post,
)
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
ATTEMPTS = 20
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 4 * 3600.0
# Another process sends a message if the one that took it has not recorded a result by then.
CLAIM_S = 120.0
SMTP_TIMEOUT_S = 30.0
AT_ONCE = 20
_SECRET_BYTES = 24
# Standard Webhooks write keys with this prefix.
_KEY_PREFIX = "whsec_"


class ChannelNotFound(NotFound):
    """There is no alert channel with this id."""

    code = "alert_channel_not_found"


class ChannelTaken(Conflict):
    """Another alert channel has this name; choose another one, or remove that channel."""

    code = "alert_channel_taken"


class NoMailServer(BadRequest):
    """The platform knows no mail server; set SMTP_HOST and SMTP_FROM, and start it again."""

    code = "no_mail_server"


class MailServer(NamedTuple):
    """The SMTP server that accepts mail of the platform."""

    host: str
    port: int
    sender: str
    tls: Literal["starttls", "tls", "off"] = "starttls"
    user: str | None = None
    password: str | None = None


class ChannelTarget(msgspec.Struct, omit_defaults=True):
    """What is encrypted of a channel."""

    url: str | None = None
    secret: str | None = None
    to: list[str] = []

    @property
    def label(self) -> str:
        """The part that people may see."""
        if self.url is None:
            return ", ".join(self.to)

        host = urlsplit(self.url).netloc.rpartition("@")[2]
        return f"{host}/…"


class AlertChannels:
    """The channels of a platform."""

    def __init__(self, db: Database, box: SecretBox, rules: OutboundRules, mail: MailServer | None) -> None:
        self.db = db
        self._box = box
        self._rules = rules
        self._mail = mail

        # Not the event loop's own pool: a mail server that does not answer would hold all of its few threads.
        self._mail_threads = ThreadPoolExecutor(AT_ONCE, "mail")

    async def list_all(self, db: Any = None, channel_id: UUID | None = None) -> list[Channel]:
        """List the channels, or the one with an id."""
        rows = await (db or self.db).fetch(sql.list_channels, id=channel_id)
        return [
            Channel(
                id=row["id"],
                kind=row["kind"],
                name=row["name"],
                target=self._decrypt_target(row).label,
                created_at=row["created_at"],
                last_delivered_at=row["delivered_at"],
                last_error=row["error"],
            )
            for row in rows
        ]

    async def add(self, db: Any, request: ChannelRequest) -> NewChannel:
        """Add a channel. Raises Invalid, NoMailServer and ChannelTaken."""
        target = self._to_target(request)
        channel_id = uuid7()
        sealed = self._box.encrypt(dump_api(target), str(channel_id))
        inserted_id = await db.fetchval(
            sql.insert_channel, id=channel_id, kind=request.kind, name=request.name, target_sealed=sealed
        )
        if inserted_id is None:
            raise ChannelTaken

        return NewChannel(
            id=channel_id,
            kind=request.kind,
            name=request.name,
            target=target.label,
            created_at=now(),
            last_delivered_at=None,
            last_error=None,
            secret=target.secret,
        )

    def _to_target(self, request: ChannelRequest) -> ChannelTarget:
        """Return what a channel stores. Raises Invalid and NoMailServer."""
        if request.kind == "webhook":
            if request.url is None or request.to is not None:
                raise Invalid.field(["body", "url"], "is required for a webhook, which has no `to`")

            key = _KEY_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
            return ChannelTarget(url=request.url, secret=key)

        if request.to is None or request.url is not None:
            raise Invalid.field(["body", "to"], "is required for a mail, which has no `url`")
        if self._mail is None:
            raise NoMailServer

        return ChannelTarget(to=request.to)

    async def remove(self, db: Any, channel_id: UUID) -> None:
        """Remove a channel, with the messages that were not delivered yet. Raises ChannelNotFound."""
        if await db.fetchval(sql.delete_channel, id=channel_id) is None:
            raise ChannelNotFound

    async def test(self, channel_id: UUID) -> TestResult:
        """Send a test message now, once. Raises ChannelNotFound."""
        rows = await self.db.fetch(sql.list_channels, id=channel_id)
        if not rows:
            raise ChannelNotFound

        message = Message("test", f"Test of the alert channel {rows[0]['name']}", "It works.", {})
        error = await self.send(rows[0]["kind"], self._decrypt_target(rows[0]), str(uuid7()), message)
        return TestResult(error is None, error)

    def _decrypt_target(self, row: Record, name: str = "id") -> ChannelTarget:
        return msgspec.json.decode(self._box.decrypt(row["target_sealed"], str(row[name])), type=ChannelTarget)

    async def deliver(self, delivery: Record) -> str | None:
        """Send a message that is due. Return why it was not delivered, or None."""
        try:
            target = self._decrypt_target(delivery, "channel_id")
        except UserMistake as exc:
            return str(exc)

        return await self.send(delivery["kind"], target, str(delivery["id"]), to_message(delivery))

    async def send(self, kind: str, target: ChannelTarget, message_id: str, message: "Message") -> str | None:
        """Send a message once. Return why it was not delivered, or None."""
        if kind == "webhook":
            return await self._call_webhook(target, message_id, message)
        if self._mail is None:
            return NoMailServer().message

        try:
            send = partial(_send_mail, self._mail, target.to, message_id=message_id, message=message)
            await asyncio.get_running_loop().run_in_executor(self._mail_threads, send)
        except (OSError, smtplib.SMTPException, ValueError) as exc:
            return f"{self._mail.host}: {str(exc) or type(exc).__name__}"

        return None

    async def _call_webhook(self, target: ChannelTarget, message_id: str, message: "Message") -> str | None:
        body = dump_api({"type": message.event, "text": f"{message.title}\n{message.text}", "alert": message.alert})
        key = base64.b64decode((target.secret or "").removeprefix(_KEY_PREFIX))
        headers = {
            "User-Agent": "portside",
            "Content-Type": "application/json",
            **build_signature_headers([key], message_id, int(now().timestamp()), body),
        }

        try:
            status = await post(target.url or "", headers, body, self._rules)
        except (AddressNotAllowed, HostUnknown, HostUnreachable) as exc:
            return exc.message

        return None if status in range(200, 300) else f"the receiver answered {status}"


class Message(NamedTuple):
    """What a channel gets: the kind of event, two texts, and the alert for programs."""

    event: str
    title: str
    text: str
    alert: Mapping[str, Any]


def to_message(delivery: Record) -> Message:
    """Return the message about the beginning or the end of an alert."""
    rule = RULES.get(delivery["rule"])
    summary = rule.summary if rule else delivery["rule"]
    unit = rule.unit if rule else ""

    label = "alert"
    since = f"Since {delivery['began_at']:%Y-%m-%d %H:%M} UTC"
    if delivery["event"] == "ended":
        label = "ended"
        since += f", until {delivery['ended_at']:%Y-%m-%d %H:%M} UTC"

    value = f"{delivery['value']:g} {unit} (threshold {delivery['threshold']:g})" if unit else ""
    text = "\n".join(line for line in (summary, value, delivery["detail"], f"{since}.") if line)

    alert = {
        "id": str(delivery["alert_id"]),
        **{name: delivery[name] for name in ("rule", "subject", "name", "detail", "value", "threshold")},
        **{name: delivery[name] and iso(delivery[name]) for name in ("began_at", "fired_at", "ended_at")},
    }

    title = f"[{label}] {delivery['rule']}: {delivery['name']}"
    return Message(event=delivery["event"], title=title, text=text, alert=alert)


def _send_mail(server: MailServer, to: list[str], message_id: str, message: Message) -> None:
    """Send one mail. Raises OSError and SMTPException."""
    mail = EmailMessage()
    mail["From"] = server.sender
    mail["To"] = ", ".join(to)
    # Users choose the names of deployments, and a line break in one would begin another header.
    mail["Subject"] = " ".join(message.title.split())[:200]
    mail["Date"] = formatdate()
    mail["Message-ID"] = make_msgid(message_id, server.sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text)

    connect: Any = smtplib.SMTP
    more: dict[str, Any] = {}

    if server.tls == "tls":
        connect = smtplib.SMTP_SSL
        more = {"context": get_ssl_context()}

    with connect(server.host, server.port, timeout=SMTP_TIMEOUT_S, **more) as smtp:
        if server.tls == "starttls":
            smtp.starttls(context=get_ssl_context())

        if server.user is not None:
            smtp.login(server.user, server.password or "")

        smtp.send_message(mail)


class AlertDeliveries(Task):
    """Sends the messages that are due. Safe in several processes at once."""

    every_s: ClassVar[float] = 5.0

    def __init__(self, channels: AlertChannels) -> None:
        super().__init__()
        self._channels = channels

    async def activate(self) -> Status:
        """Send one batch."""
        db = self._channels.db
        due = await db.fetch(
            sql.claim_deliveries,
            limit=AT_ONCE,
            claim_s=CLAIM_S,
            first_pause_s=FIRST_PAUSE_S,
            longest_pause_s=LONGEST_PAUSE_S,
        )

        await asyncio.gather(*(self._send(delivery) for delivery in due))
        return Status({"sent": len(due)}, again=len(due) == AT_ONCE)

    async def _send(self, delivery: Record) -> None:
        error = await self._channels.deliver(delivery)
        pause_s = min(FIRST_PAUSE_S * 2 ** (delivery["attempts"] - 1), LONGEST_PAUSE_S)
        is_final = error is None or delivery["attempts"] >= ATTEMPTS

        if error is not None:
            log.warning("an alert was not delivered", channel=str(delivery["channel_id"]), error=error)

        await self._channels.db.execute(
            sql.record_attempt, id=delivery["id"], error=error, retry_s=None if is_final else pause_s
        )
