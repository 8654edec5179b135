"""The client of the control plane's internal API; no other module knows its routes.

Calls raise `ControlPlaneUnreachable` when the same call may succeed later, and `ControlPlaneRefused` when it would not.
Reports of status are repeated with back-off until the control plane answers, because deployments must keep running
while it is away.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import httpx2
import msgspec

from portside.dataplane.failures import BuildFailed, ControlPlaneRefused, ControlPlaneUnreachable
from portside.kernel.local_addresses import is_loopback_url
from portside.kernel.logs import get_logger
from portside.kernel.supervision import Backoff
from portside.listener_api import (
    Connect,
    Connected,
    DeploymentReport,
    Desired,
    DesiredRevision,
    LogBatch,
    LogType,
    MetricsReport,
    NewLogEntry,
    RevisionReport,
)

log = get_logger(__name__)
T = TypeVar("T")
_TIMEOUT_S = 30.0
_RETRIED = frozenset({401, 403, 408, 425, 429})


class ControlPlane:
    """The control plane's API for listeners."""

    def __init__(self, url: str, api_key: str, api_key_file: str | None = None) -> None:
        self._key_file = None if api_key_file is None else Path(api_key_file)
        self._client = httpx2.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"X-Api-Key": api_key, "User-Agent": "portside-listener"},
            timeout=_TIMEOUT_S,
            # A proxy would look for this machine's platform on its own machine.
            trust_env=not is_loopback_url(url),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def connect(self, body: Connect) -> UUID:
        """Introduce this listener and return its id. Raises ControlPlaneUnreachable and ControlPlaneRefused."""
        raw = await self._call("POST", "/internal/listeners/connect", body)
        return msgspec.json.decode(raw, type=Connected).listener_id

    async def get_desired(self, listener_id: UUID, after: int, wait_s: int) -> Desired:
        """Return the desired state once its generation differs from `after`, at the latest after `wait_s` seconds.

        Raises ControlPlaneUnreachable and ControlPlaneRefused.
        """
        path = f"/internal/listeners/{listener_id}/desired?after={after}&wait_s={wait_s}"
        raw = await self._call("GET", path, timeout_s=wait_s + _TIMEOUT_S)
        return msgspec.json.decode(raw, type=Desired)

    async def get_revision(self, deployment_id: UUID, revision_id: UUID) -> DesiredRevision:
        """Return a revision of any status, with retries. Raises ControlPlaneRefused."""
        path = f"/internal/deployments/{deployment_id}/revisions/{revision_id}"
        raw = await self._retry_until_answered(lambda: self._call("GET", path))
        return msgspec.json.decode(raw, type=DesiredRevision)

    async def report_deployment(self, deployment_id: UUID, report: DeploymentReport) -> None:
        """Report the status of a deployment, with retries. Raises ControlPlaneRefused."""
        path = f"/internal/deployments/{deployment_id}/status"
        await self._retry_until_answered(lambda: self._call("PUT", path, report))

    async def report_revision(self, deployment_id: UUID, revision_id: UUID, report: RevisionReport) -> None:
        """Report the new status of a revision, with retries. Raises ControlPlaneRefused for a forbidden transition."""
        path = f"/internal/deployments/{deployment_id}/revisions/{revision_id}/status"
        await self._retry_until_answered(lambda: self._call("PUT", path, report))

    async def put_metrics(self, deployment_id: UUID, metrics: MetricsReport) -> None:
        """Report the metrics of a deployment. Raises ControlPlaneUnreachable and ControlPlaneRefused."""
        await self._call("PUT", f"/internal/deployments/{deployment_id}/metrics", metrics)

    async def add_logs(self, deployment_id: UUID, revision_id: UUID, kind: LogType, entries: list[NewLogEntry]) -> None:
        """Append up to 1,000 entries to a log. Raises ControlPlaneUnreachable and ControlPlaneRefused."""
        path = f"/internal/deployments/{deployment_id}/revisions/{revision_id}/logs"
        await self._call("POST", path, LogBatch(kind, entries))

    async def fetch_archive(self, deployment_id: UUID, revision_id: UUID, into: Path) -> None:
        """Download the source archive of a revision to a file, with retries. Raises BuildFailed."""
        path = f"/internal/deployments/{deployment_id}/revisions/{revision_id}/archive"
        try:
            await self._retry_until_answered(lambda: self._download(path, into))
        except ControlPlaneRefused as exc:
            raise BuildFailed(f"the uploaded archive cannot be downloaded: {exc}; upload it again") from exc

    async def confirm_deleted(self, deployment_id: UUID) -> None:
        """Report that a deployment is deleted from the compute, with retries. Raises ControlPlaneRefused."""
        try:
            await self._retry_until_answered(lambda: self._call("DELETE", f"/internal/deployments/{deployment_id}"))
        except ControlPlaneRefused as exc:
            if exc.status != 404:
                raise

    async def _call(self, method: str, path: str, body: object = None, *, timeout_s: float = _TIMEOUT_S) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            response = await self._client.request(method, path, content=content, headers=headers, timeout=timeout_s)
        except httpx2.HTTPError as exc:
            raise ControlPlaneUnreachable(f"{type(exc).__name__}: {exc}") from exc

        if response.status_code == HTTPStatus.UNAUTHORIZED:
            self._read_key()

        _check(response)
        return response.content

    def _read_key(self) -> None:
        """Read a newer key from the key file, if there is one; the next calls use it."""
        if self._key_file is None:
            return

        with contextlib.suppress(OSError):
            key = self._key_file.read_text("utf-8").strip()
            if key:
                self._client.headers["X-Api-Key"] = key

    async def _download(self, path: str, into: Path) -> None:
        try:
            async with self._client.stream("GET", path) as response:
                if not response.is_success:
                    await response.aread()

                _check(response)
                with into.open("wb") as file:
                    async for chunk in response.aiter_bytes():
                        await asyncio.to_thread(file.write, chunk)
        except httpx2.HTTPError as exc:
            raise ControlPlaneUnreachable(f"{type(exc).__name__}: {exc}") from exc

    async def _retry_until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        backoff = Backoff(limit_s=10)
        while True:
            try:
                return await call()
            except ControlPlaneUnreachable as exc:
                delay = backoff.next()
                log.warning("the control plane does not answer", error=str(exc), again_in_s=delay)
                await asyncio.sleep(delay)


def _check(response: httpx2.Response) -> None:
    """Raise ControlPlaneUnreachable or ControlPlaneRefused for an error response."""
    if response.is_success:
        return

    detail = response.text[:500]
    # 401 and 403 are retried: an operator can replace an invalid key while the deployments keep running.
    if response.status_code in _RETRIED or response.status_code >= 500:
        raise ControlPlaneUnreachable(f"{response.status_code}: {detail}")

    raise ControlPlaneRefused(response.status_code, detail)
