"""What a listener makes of the control plane's answers: which calls are repeated, and with which key."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from portside.dataplane import api
from portside.dataplane.api import ControlPlane
from portside.dataplane.failures import BuildFailed, ControlPlaneRefused, ControlPlaneUnreachable
from portside.kernel.supervision import Backoff
from portside.listener_api import DeploymentReport, MetricsReport
from tests.receiver import Receiver, serve


class Answering(Receiver):
    """A control plane that answers with these status codes, the last one again and again."""

    def __init__(self, *statuses: int) -> None:
        super().__init__()
        self.statuses = list(statuses)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        await super().__call__(scope, receive, send)

    @property
    def keys(self) -> list[str]:
        return [headers["x-api-key"] for headers, _ in self.got]


@pytest.fixture
def plane() -> Answering:
    return Answering(204)


@pytest.fixture
async def control(plane: Answering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ControlPlane]:
    monkeypatch.setattr(api, "Backoff", lambda limit_s: Backoff(first_s=0.0, limit_s=limit_s))
    async with serve(plane) as url:
        control = ControlPlane(url, "old-key", str(tmp_path / "key"))
        yield control
        await control.close()


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429, 500, 503])
async def test_a_report_is_repeated_until_the_control_plane_takes_it(
    plane: Answering, control: ControlPlane, status: int
) -> None:
    plane.statuses = [status, status, 204]

    await control.report_deployment(uuid4(), DeploymentReport("READY"))

    assert len(plane.got) == 3


@pytest.mark.parametrize("status", [400, 404, 409, 422])
async def test_a_report_that_would_be_refused_again_is_not_repeated(
    plane: Answering, control: ControlPlane, status: int
) -> None:
    plane.statuses = [status]

    with pytest.raises(ControlPlaneRefused) as refusal:
        await control.report_deployment(uuid4(), DeploymentReport("READY"))

    assert refusal.value.status == status
    assert len(plane.got) == 1


async def test_metrics_are_not_repeated(plane: Answering, control: ControlPlane) -> None:
    plane.statuses = [503, 204]

    with pytest.raises(ControlPlaneUnreachable):
        await control.put_metrics(uuid4(), MetricsReport())

    assert len(plane.got) == 1


async def test_a_deletion_that_the_control_plane_knows_already_is_confirmed(
    plane: Answering, control: ControlPlane
) -> None:
    plane.statuses = [404]
    await control.confirm_deleted(uuid4())

    plane.statuses = [409]
    with pytest.raises(ControlPlaneRefused):
        await control.confirm_deleted(uuid4())


async def test_a_key_that_was_replaced_is_read_from_its_file(
    plane: Answering, control: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("new-key\n")
    plane.statuses = [403, 401, 204]

    await control.report_deployment(uuid4(), DeploymentReport("READY"))

    assert plane.keys == ["old-key", "old-key", "new-key"]


async def test_an_archive_that_is_gone_fails_the_build_with_what_to_do(
    plane: Answering, control: ControlPlane, tmp_path: Path
) -> None:
    plane.statuses = [404]

    with pytest.raises(BuildFailed, match="upload it again"):
        await control.fetch_archive(uuid4(), uuid4(), tmp_path / "archive")

    assert not (tmp_path / "archive").exists()
