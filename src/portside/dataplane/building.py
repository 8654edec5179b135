"""Turning a revision's source into a build on this machine's disk, or finding the one that is there.

How a build is made is in `builds/`; here is when, in which folder and with which log.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

from portside.dataplane.builds.archive import ArchiveSource
from portside.dataplane.builds.git import GitSource
from portside.dataplane.builds.javascript import Scripts
from portside.dataplane.builds.revision import BuildOrder, Built, build_revision, discard_build, find_build
from portside.dataplane.builds.source import Source
from portside.dataplane.builds.wheel import is_behind
from portside.dataplane.compute.interface import Build, LogOf
from portside.dataplane.failures import BuildFailed
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder
from portside.dataplane.types import DesiredRevision
from portside.kernel.logs import get_logger

log = get_logger(__name__)
_GIT, _ARCHIVE = "git_hosting", "internal_source"
BUILT_SOURCES = frozenset({_GIT, _ARCHIVE})


@dataclass(frozen=True)
class Builder:
    """Builds the revisions of one deployment, in its folder; `fetch_archive` puts a revision's archive into a file."""

    settings: ListenerSettings
    folder: DeploymentFolder
    log_of: LogOf
    fetch_archive: Callable[[UUID, Path], Awaitable[None]]

    def find(self, revision: DesiredRevision) -> Build | None:
        """Return the finished build of a revision, its own or the one it serves again, or None.

        One with an older agent server is not served again: the database may have been migrated since.
        """
        own = self.folder.revision(revision.id)
        built, again = find_build(own), revision.built_from
        if built is None and again is not None and not is_behind(self.folder.revision(again) / "venv"):
            self.folder.share_revision(again, revision.id)
            built = find_build(own)
        return None if built is None else _build_of(own, built)

    async def make(self, revision: DesiredRevision) -> Build:
        """Build from nothing, with a log of its own, which has arrived when this returns. Raises BuildFailed."""
        build_log = self.log_of(revision.id)
        try:
            order = self._order(revision)
            return _build_of(order.folder, await build_revision(order, build_log))
        except BuildFailed as exc:
            build_log.add(str(exc), "ERROR")
            raise
        except Exception as exc:
            log.exception("a build broke", revision=str(revision.id))
            build_log.add(f"The build broke: {exc}", "ERROR")
            raise BuildFailed(f"the build broke: {type(exc).__name__}: {exc}") from exc
        finally:
            await build_log.close()

    async def discard(self, revision_id: UUID) -> None:
        """Remove a revision's build, whatever is in it; one that it only serves again stays."""
        if not self.folder.unshare_revision(revision_id):
            await asyncio.to_thread(discard_build, self.folder.revision(revision_id))

    def _order(self, revision: DesiredRevision) -> BuildOrder:
        if not revision.graph_config_path:
            raise BuildFailed("the revision names no graph configuration file")
        return BuildOrder(
            self.folder.revision(revision.id),
            self._source(revision),
            revision.graph_config_path,
            self.settings.folder / "wheels",
            self.settings.build_timeout_s,
            Scripts(revision.install_command, revision.build_command),
            [secret.value for secret in revision.secrets],
        )

    def _source(self, revision: DesiredRevision) -> Source:
        limit = self.settings.max_source_bytes
        if revision.source == _ARCHIVE:
            return ArchiveSource(partial(self.fetch_archive, revision.id), limit)
        if revision.source != _GIT or not revision.repo_url:
            raise BuildFailed(f"source {revision.source!r} cannot be built by this listener")
        ref, commit = revision.repo_ref, revision.repo_commit_sha
        return GitSource(revision.repo_url, ref, commit, limit, revision.repo_credential)


def _build_of(folder: Path, built: Built) -> Build:
    return Build(folder, folder / "source" / built.config, built.commit)
