"""The state of one deployment that the data plane keeps on disk.

deployments/<id>/state.json          port, active and previous revision, replicas that were started
                 served.json         the revisions of it, for backups: the rest is of this machine alone
                 sources/<revision>/ what a revision was built from, as a .git folder; builds of the same commit
                                     use it, so that they need no git host
                 database-password   (0600)
                 pinned-revisions.json  the revisions that threads continue with, for its servers
                 images.json         images that revisions are pinned to (compute/containers/)
                 home/               HOME of its processes, shared by all revisions
                 logs/<revision>.log output of its servers
                 revisions/<id>/     source and virtual environment of a build (builds/), or a link to
                                     the revision whose build is reused

Listeners of other versions read and write these files, so names and keys must not change.
"""

import contextlib
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from uuid import UUID

import msgspec

from portside.dataplane.compute.scaling import ServerTier
from portside.dataplane.processes import ProcessIdentity
from portside.kernel.files import make_private_dir, write_private
from portside.kernel.logs import get_logger

log = get_logger(__name__)


class ReplicaRecord(msgspec.Struct, frozen=True):
    """A replica that was started, recorded so that the next listener finds it.

    `port` is its private port, `fingerprint` the one of the plan that it was started with. `server_code` is the version
    of its server's files; it is empty for a combined build, and for a replica of an earlier listener. `public_inode` is
    the number of its public socket; it is 0 if it has none, and for a replica of an earlier listener.
    """

    process: ProcessIdentity
    revision_id: UUID
    tier: ServerTier = ServerTier.ALL
    port: int = 0
    fingerprint: str = ""
    server_code: str = ""
    public_inode: int = 0


class SleepRecord(msgspec.Struct, frozen=True):
    """A deployment that sleeps, and when its agent has something to do (seconds since 1970, None for never)."""

    due_at: float | None


class DeploymentState(msgspec.Struct):
    """The state that must survive a restart of the listener."""

    port: int | None = None
    active_revision_id: UUID | None = None
    previous_revision_id: UUID | None = None
    # The replicas that were started and may still run.
    replicas: list[ReplicaRecord] = []
    # Roughly when the agent was last used, in seconds since 1970.
    used_at: float = 0.0
    # None while the deployment is awake.
    sleep: SleepRecord | None = None
    # Revisions that were replaced and whose code threads may need, with the Unix time of the replacement.
    earlier: dict[UUID, float] = {}

    @property
    def has_servers(self) -> bool:
        """Whether servers of the deployment outlived an earlier listener, or it sleeps, as it should."""
        return self.sleep is not None or any(record.process.is_alive for record in self.replicas)


class ServedRevisions(msgspec.Struct):
    """The part of the state that a backup holds."""

    active_revision_id: UUID | None = None
    previous_revision_id: UUID | None = None
    earlier: dict[UUID, float] = {}


def list_stopped_deployments(dataplane: Path) -> set[UUID]:
    """Return the deployments that should serve and of which nothing runs, as before the start of a listener."""
    stopped_ids: set[UUID] = set()
    for path in (dataplane / "deployments").glob("*/"):
        with contextlib.suppress(ValueError):
            deployment_id = UUID(path.name)
            state = DeploymentFolder(dataplane, deployment_id).state
            if state.active_revision_id is not None and not state.has_servers:
                stopped_ids.add(deployment_id)

    return stopped_ids


class DeploymentFolder:
    """The folder of one deployment; nothing is created before it is needed."""

    def __init__(self, dataplane: Path, deployment_id: UUID) -> None:
        self.path = dataplane / "deployments" / str(deployment_id)
        self.password_file = self.path / "database-password"
        self.pinned_revisions = self.path / "pinned-revisions.json"
        self._state_file = self.path / "state.json"
        self._served_file = self.path / "served.json"
        self._sources = self.path / "sources"
        self._saved_served = b""

        self.state = self._load()

    def read_again(self) -> None:
        """Read the state that another object with this folder has written."""
        self.state = self._load()

    def home(self) -> Path:
        """Return the HOME folder of the deployment's processes."""
        return make_private_dir(self.path / "home")

    def server_log(self, revision_id: UUID) -> Path:
        """Return the file for the output of a revision's servers."""
        return make_private_dir(self.path / "logs") / f"{revision_id}.log"

    def known_graphs(self, revision_id: UUID, describing_code: str) -> Path:
        """Return the file in which servers keep the descriptions of a revision's graphs by one version of executors.

        Files of other versions are removed, because their servers read them at their start.
        """
        file = make_private_dir(self.path / "logs") / f"{revision_id}.graphs-{describing_code}"
        self.forget_graphs(revision_id, except_in=file.name)
        return file

    def forget_graphs(self, revision_id: UUID, *, except_in: str | None = None) -> None:
        """Remove the descriptions of a revision's graphs, except files whose names begin with `except_in`."""
        for file in (self.path / "logs").glob(f"{revision_id}.graphs-*"):
            if except_in is None or not file.name.startswith(except_in):
                file.unlink(missing_ok=True)

    def revision(self, revision_id: UUID) -> Path:
        """Return the folder of a revision's build, which may not exist."""
        return self.path / "revisions" / str(revision_id)

    def share_revision(self, built_id: UUID, revision_id: UUID) -> None:
        """Link a revision to the build of another one, if that still exists."""
        original = self.revision(built_id).resolve()
        shared = self.revision(revision_id)
        if original.is_dir() and not shared.exists():
            shared.unlink(missing_ok=True)
            shared.symlink_to(original.name, target_is_directory=True)

    def unshare_revision(self, revision_id: UUID) -> bool:
        """Remove a revision's link to another one's build; return whether there was one."""
        shared = self.revision(revision_id)
        if not shared.is_symlink():
            return False

        shared.unlink(missing_ok=True)
        return True

    def source(self, revision_id: UUID) -> Path:
        """Return the folder for what a revision was built from, which may not exist."""
        return self._sources / str(revision_id)

    def find_source(self, commit: str | None) -> Path | None:
        """Return the .git folder of a build of a commit, if one was kept."""
        if not commit or not self._sources.is_dir():
            return None

        for folder in self._sources.iterdir():
            with contextlib.suppress(OSError):
                # A commit is checked out, and no branch.
                if (folder / "HEAD").read_text().strip() == commit:
                    return folder

        return None

    def save(self) -> None:
        """Write the state files."""
        state = self.state
        make_private_dir(self.path)
        write_private(self._state_file, msgspec.json.encode(state).decode())

        served = ServedRevisions(
            active_revision_id=state.active_revision_id,
            previous_revision_id=state.previous_revision_id,
            earlier=state.earlier,
        )

        content = msgspec.json.encode(served)
        if content != self._saved_served:
            write_private(self._served_file, content.decode())
            self._saved_served = content

    def activate(self, revision_id: UUID) -> None:
        """Record the revision that serves now, and the one that served before."""
        previous = self.state.active_revision_id
        if previous != revision_id:
            if previous is not None:
                self.state.earlier[previous] = time.time()

            self.state.earlier.pop(revision_id, None)
            self.state.previous_revision_id = previous
            self.state.active_revision_id = revision_id

        self.state.sleep = None
        self.save()

    def deactivate(self) -> None:
        """Record that no revision serves any more."""
        self.state.active_revision_id = None
        self.state.sleep = None
        self.save()

    def forget_earlier(self, unused: Collection[UUID]) -> None:
        """Remove revisions from those whose code threads may need."""
        if unused:
            self.state.earlier = {
                revision_id: at for revision_id, at in self.state.earlier.items() if revision_id not in unused
            }
            self.save()

    def add_replica(self, record: ReplicaRecord) -> None:
        """Record a replica that was started."""
        self.state.replicas.append(record)
        self.save()

    def remove_replica(self, process: ProcessIdentity) -> None:
        """Remove the record of a replica that has ended. On a full disk the record stays, which does no harm."""
        self.state.replicas = [record for record in self.state.replicas if record.process != process]
        try:
            if self.path.exists():
                self.save()
        except OSError as exc:
            log.error("a deployment's state cannot be written", path=str(self._state_file), error=str(exc))  # noqa: TRY400

    def remove_revisions_except(self, used_ids: set[UUID]) -> None:
        """Remove the builds and logs of all other revisions, except builds that the kept ones reuse."""
        names = {str(revision_id) for revision_id in used_ids}
        # A revision that reuses a build is a link to the folder of that.
        names |= {self.revision(revision_id).resolve().name for revision_id in used_ids}

        removed_names = set()
        for parent in (self.path / "revisions", self.path / "logs", self._sources):
            for entry in parent.iterdir() if parent.exists() else ():
                name = entry.name.split(".", 1)[0]
                if name not in names:
                    _remove(entry)
                    removed_names.add(name)

        if removed_names:
            log.info(
                "builds and logs of replaced revisions were removed",
                folder=str(self.path),
                revisions=len(removed_names),
            )

    def remove(self) -> None:
        """Remove the whole folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _load(self) -> DeploymentState:
        try:
            return msgspec.json.decode(self._state_file.read_bytes(), type=DeploymentState)
        except FileNotFoundError:
            return self._load_served()
        except msgspec.MsgspecError:
            log.exception(
                "a deployment's state file is damaged; only its revisions are known", path=str(self._state_file)
            )
            return self._load_served()

    def _load_served(self) -> DeploymentState:
        """Return the state of a deployment that was restored from a backup, or that is new."""
        try:
            served = msgspec.json.decode(self._served_file.read_bytes(), type=ServedRevisions)
        except (FileNotFoundError, msgspec.MsgspecError):
            return DeploymentState()

        return DeploymentState(
            active_revision_id=served.active_revision_id,
            previous_revision_id=served.previous_revision_id,
            earlier=served.earlier,
        )


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)
