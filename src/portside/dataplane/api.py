"""The client of the control plane's internal API: the only module that knows its addresses.

Calls raise `Unreachable` for what may pass and `Refused` for what will not. Reports insist: they are repeated with
back-off until the control plane has answered, because nothing that runs may stop while it is away.
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import httpx2
import msgspec

from portside.dataplane.backoff import Backoff
from portside.dataplane.failures import BuildFailed, Refused, Unreachable
from portside.dataplane.types import DeploymentReport, Desired, LogEntry, LogKind, Measures, RevisionReport
from portside.kernel.logs import get_logger

log = get_logger(__name__)
T = TypeVar("T")
_TIMEOUT_S = 30.0
_RETRIED = frozenset({401, 403, 408, 425, 429})


class _Connected(msgspec.Struct):
    listener_id: UUID


class ControlPlane:
    """The control plane, as this listener sees it."""

    def __init__(self, url: str, api_key: str) -> None:
        self._client = httpx2.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"X-Api-Key": api_key, "User-Agent": "portside-listener"},
            timeout=_TIMEOUT_S,
            trust_env=not _is_loopback(httpx2.URL(url).host),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def connect(self, compute_type: str, compute_id: str, version: str) -> UUID:
        """Introduce this listener and return its id. Raises Unreachable and Refused."""
        body = {"compute_type": compute_type, "compute_id": compute_id, "version": version}
        raw = await self._call("POST", "/internal/listeners/connect", body)
        return msgspec.json.decode(raw, type=_Connected).listener_id

    async def desired(self, listener_id: UUID, after: int, wait_s: int) -> Desired:
        """Return what is desired once it is newer than `after`, or as it is when `wait_s` seconds have gone by.

        Raises Unreachable and Refused.
        """
        path = f"/internal/listeners/{listener_id}/desired?after={after}&wait_s={wait_s}"
        raw = await self._call("GET", path, timeout_s=wait_s + _TIMEOUT_S)
        return msgspec.json.decode(raw, type=Desired)

    async def report_deployment(self, deployment_id: UUID, report: DeploymentReport) -> None:
        """Tell how a deployment is, for as long as it takes. Raises Refused."""
        path = f"/internal/deployments/{deployment_id}/status"
        await self._insist(lambda: self._call("PUT", path, report))

    async def report_revision(self, deployment_id: UUID, revision_id: UUID, report: RevisionReport) -> None:
        """Move a revision, for as long as it takes. Raises Refused when the move is not allowed."""
        path = f"/internal/deployments/{deployment_id}/revisions/{revision_id}/status"
        await self._insist(lambda: self._call("PUT", path, report))

    async def put_metrics(self, deployment_id: UUID, measures: Measures) -> None:
        """Tell what a deployment uses. Raises Unreachable and Refused."""
        await self._call("PUT", f"/internal/deployments/{deployment_id}/metrics", measures)

    async def add_logs(self, deployment_id: UUID, revision_id: UUID, kind: LogKind, entries: list[LogEntry]) -> None:
        """Append to a revision's log, at most 1,000 entries. Raises Unreachable and Refused."""
        path = f"/internal/deployments/{deployment_id}/revisions/{revision_id}/logs"
        await self._call("POST", path, {"type": kind, "entries": entries})

    async def fetch_archive(self, deployment_id: UUID, revision_id: UUID, into: Path) -> None:
        """Write the source archive of a revision into a file, for as long as it takes. Raises BuildFailed."""
        path = f"/internal/deployments/{deployment_id}/revisions/{revision_id}/archive"
        try:
            await self._insist(lambda: self._download(path, into))
        except Refused as exc:
            raise BuildFailed(f"the uploaded archive cannot be had: {exc}") from exc

    async def forget_deployment(self, deployment_id: UUID) -> None:
        """Say that nothing is left of a deployment, for as long as it takes. Raises Refused."""
        try:
            await self._insist(lambda: self._call("DELETE", f"/internal/deployments/{deployment_id}"))
        except Refused as exc:
            if exc.status != 404:
                raise

    async def _call(self, method: str, path: str, body: object = None, *, timeout_s: float = _TIMEOUT_S) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            answer = await self._client.request(method, path, content=content, headers=headers, timeout=timeout_s)
        except httpx2.HTTPError as exc:
            raise Unreachable(f"{type(exc).__name__}: {exc}") from exc
        _check(answer)
        return answer.content

    async def _download(self, path: str, into: Path) -> None:
        try:
            async with self._client.stream("GET", path) as answer:
                if not answer.is_success:
                    await answer.aread()
                _check(answer)
                with into.open("wb") as file:
                    async for chunk in answer.aiter_bytes():
                        await asyncio.to_thread(file.write, chunk)
        except httpx2.HTTPError as exc:
            raise Unreachable(f"{type(exc).__name__}: {exc}") from exc

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        backoff = Backoff(limit_s=10)
        while True:
            try:
                return await call()
            except Unreachable as exc:
                delay = backoff.next()
                log.warning("the control plane does not answer", error=str(exc), again_in_s=delay)
                await asyncio.sleep(delay)


def _check(answer: httpx2.Response) -> None:
    """Raise Unreachable or Refused for an answer that is no success."""
    if answer.is_success:
        return
    detail = answer.text[:500]
    # A key that is not valid yet or any more is for the operator to mend; deployments go on meanwhile.
    if answer.status_code in _RETRIED or answer.status_code >= 500:
        raise Unreachable(f"{answer.status_code}: {detail}")
    raise Refused(answer.status_code, detail)


def _is_loopback(host: str) -> bool:
    """Whether the host is this machine, to which no proxy leads."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
