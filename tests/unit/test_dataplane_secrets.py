"""What servers say of a deployment's secrets: neither its log nor the reason of a failure shows them."""

from uuid import uuid4

from portside.dataplane.delivery import reason_of
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.types import DesiredRevision, LogEntry, Secret

KEY = "a-key-of-a-model"


def test_the_reason_of_a_failure_shows_no_secret():
    revision = DesiredRevision(id=uuid4(), number=1, status="DEPLOYING", secrets=[Secret("KEY", KEY)])
    failure = DeployFailed(f"the server exited with code 1; it said:\nRuntimeError: no such key {KEY}")
    assert reason_of(revision, failure).endswith("RuntimeError: no such key ***")
    # The value that the end of the reason cuts in two is hidden first.
    assert KEY[:8] not in reason_of(revision, DeployFailed("x" * 3990 + KEY))


async def test_the_log_of_servers_shows_no_secret():
    arrived: list[LogEntry] = []

    async def ship(entries: list[LogEntry]) -> None:
        arrived.extend(entries)

    log = RevisionLog(ship)
    log.hide([KEY])
    log.add(f"calling with {KEY}", "ERROR")
    await log.close()
    assert [(entry.level, entry.message) for entry in arrived] == [("ERROR", "calling with ***")]
