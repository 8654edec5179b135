"""A build that cannot go on ends with a reason for its user, and leaves nothing behind."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from portside.dataplane.builds.build import (
    BuildPlaces,
    BuildRequest,
    ExecutorFiles,
    build_revision,
    discard_unfinished,
    find_build,
)
from portside.dataplane.builds.commands import BuildFailed
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.masking import MaskedOutput

SECRET = "a-secret-value"


class FailingSource:
    """A source that leaves a file, and then does what the test says."""

    title = "a source"
    secrets: tuple[str, ...] = ()

    def __init__(self, fail: Callable[[], None] | None) -> None:
        self._fail = fail
        self.files = Path()

    def checkout(self, folder: Path, output: MaskedOutput) -> "FailingSource":
        self.files = folder / "source"
        return self

    async def fetch(self) -> str:
        self.files.mkdir()
        (self.files / "half").write_text("a half of it")
        if self._fail is not None:
            self._fail()

        await asyncio.Event().wait()
        return ""

    def keep_history(self, kept: Path | None) -> None:
        raise AssertionError


async def fail_build(folder: Path, fail: Callable[[], None] | None, timeout_s: float = 600) -> str:
    """Build, and return the reason of the failure. Nothing must be left."""
    request = BuildRequest(
        folder=folder / "revision",
        source=FailingSource(fail),  # type: ignore[arg-type]
        config_path="langgraph.json",
        places=BuildPlaces(folder / "wheels"),
        timeout_s=timeout_s,
        secrets={"TOKEN": SECRET},
    )

    log = RevisionLog(ship)
    try:
        with pytest.raises(BuildFailed) as failed:
            await build_revision(request, log)
    finally:
        await log.close()

    assert not request.folder.exists()
    return str(failed.value)


async def ship(_entries: object) -> None:
    pass


async def test_build_that_does_not_end_names_the_setting(tmp_path: Path) -> None:
    reason = await fail_build(tmp_path, None, timeout_s=0.2)

    assert reason == "the build took longer than 0.2 seconds (setting BUILD_TIMEOUT_S)"


async def test_error_of_the_system_is_explained(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files", "/a/path/of/the/listener")

    reason = await fail_build(tmp_path, fail)

    assert reason == "the build stopped because of a system error: Too many open files"


async def test_reason_hides_secrets(tmp_path: Path) -> None:
    def fail() -> None:
        raise BuildFailed(f"git cannot fetch https://me:{SECRET}@host/repository")

    reason = await fail_build(tmp_path, fail)

    assert SECRET not in reason and "git cannot fetch" in reason


async def test_other_errors_are_no_fault_of_the_project(tmp_path: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_build(tmp_path, fail)

    assert not (tmp_path / "revision").exists()


def test_listener_removes_unfinished_builds_alone(tmp_path: Path) -> None:
    """Also one that ended before the first program; finished ones, and links to those of other revisions, stay."""
    revisions = tmp_path / "deployments" / "1" / "revisions"
    for name in ("finished", "fetching", "damaged", "elsewhere"):
        (revisions / name / "source").mkdir(parents=True)

    (revisions / "finished" / "built.json").write_text('{"commit": "", "config": "langgraph.json"}')
    (revisions / "damaged" / "built.json").write_text('{"commit": "')
    (revisions / "elsewhere").rename(tmp_path / "elsewhere")
    (revisions / "linked").symlink_to(tmp_path / "elsewhere")

    discard_unfinished(tmp_path / "deployments")

    assert sorted(found.name for found in revisions.iterdir()) == ["finished", "linked"]
    assert find_build(revisions / "finished") is not None
    assert (tmp_path / "elsewhere" / "source").is_dir()


async def test_executor_that_cannot_be_installed_is_refused_and_the_earlier_one_stays(tmp_path: Path) -> None:
    build = tmp_path / "build"
    packages = build / "venv" / "lib" / "python3.11" / "site-packages"
    info = packages / "portside-0.0.1.dist-info"
    (packages / "portside").mkdir(parents=True)
    info.mkdir()
    (packages / "portside" / "__init__.py").write_text("earlier")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: portside\nVersion: 0.0.1\n")

    files = ExecutorFiles(build, tmp_path)

    # The environment has no interpreter.
    with pytest.raises(DeployFailed, match="this version's executor cannot be installed"):
        await files.update()

    # As if the installation had replaced a part of it; another attempt keeps nothing of that.
    (packages / "portside" / "__init__.py").write_text("half of the new one")
    with pytest.raises(DeployFailed):
        await files.update()

    await files.restore_previous()
    assert (packages / "portside" / "__init__.py").read_text() == "earlier"
