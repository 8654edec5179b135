"""A platform takes backups by itself into a bucket, deletes old ones, and says when it cannot."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from portside.backup.databases import BackupFailed
from portside.backup.history import read_attempts
from portside.backup.listing import list_stored_backups
from portside.backup.stores import Store, open_store
from tests.conftest import eventually
from tests.preloaded import run_command
from tests.servers import KEY, ServerProcess, free_port, platform_server

pytestmark = [pytest.mark.timeout(900), pytest.mark.thorough]

HEADERS = {"X-Api-Key": KEY}
LOCATION = "s3://bucket-of-backups/some/prefix"
PASSPHRASE = "correct horse battery"


class ObjectStore:
    """SeaweedFS with its S3 interface, on one machine, which demands signed requests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = [free_port() for _ in range(4)]
        self._process: subprocess.Popen[bytes] | None = None
        key = {"accessKey": "the-key", "secretKey": "the-secret"}
        identity = {"name": "t", "credentials": [key], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}

        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._ports[3]}",
            "AWS_ACCESS_KEY_ID": "the-key",
            "AWS_SECRET_ACCESS_KEY": "the-secret",
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        assert weed is not None
        master, volume, filer, s3 = self._ports
        (self._folder / "data").mkdir(exist_ok=True)

        with (self._folder / "weed.log").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    weed,
                    "server",
                    "-dir=data",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    f"-master.port={master}",
                    f"-master.port.grpc={free_port()}",
                    f"-volume.port={volume}",
                    f"-volume.port.grpc={free_port()}",
                    "-filer",
                    f"-filer.port={filer}",
                    f"-filer.port.grpc={free_port()}",
                    "-s3",
                    f"-s3.port={s3}",
                    f"-s3.port.grpc={free_port()}",
                    "-s3.config=s3.json",
                    "-master.volumeSizeLimitMB=64",
                    "-volume.max=20",
                ],
                cwd=self._folder,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def store(self, **changes: str) -> Store:
        return open_store(LOCATION, {**self.environment, **changes})

    async def until_ready(self) -> None:
        async def writes() -> bool:
            try:
                with self.store().create("probe") as out:
                    out.write(b"x")
            except BackupFailed:
                return False

            return True

        await eventually(writes)


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    folder.mkdir()
    made = ObjectStore(folder)
    made.start()

    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("store") / "weed") as made:
        asyncio.run(made.until_ready())
        yield made


def test_bucket_keeps_whole_files_alone(bucket: ObjectStore) -> None:
    """Larger than a part, so that it is an upload of several parts."""
    store = bucket.store()
    content = os.urandom(1 << 20) * 40

    # Other tests leave backups there.
    before = {file.name: file.size_bytes for file in store.list()}
    with store.create("whole.backup") as out:
        for start in range(0, len(content), 1_000_000):
            out.write(content[start : start + 1_000_000])

    with store.open("whole.backup") as file:
        assert b"".join(iter(lambda: file.read(1 << 20), b"")) == content

    with pytest.raises(KeyboardInterrupt), store.create("torn.backup") as out:
        out.write(content)
        raise KeyboardInterrupt

    with store.create("log/x/1") as out:
        out.write(b"1")

    assert {file.name: file.size_bytes for file in store.list()} == {**before, "whole.backup": len(content)}
    assert [file.name for file in store.list("log/x")] == ["log/x/1"]
    assert "x" in store.list_folders("log")
    assert store.list_folders("nothing") == []
    store.delete("whole.backup")
    store.delete("whole.backup")

    assert {file.name for file in store.list()} == set(before)
    with pytest.raises(BackupFailed, match="no such file"), store.open("whole.backup") as file:
        file.read(1)


def test_refusals_of_a_bucket_have_reasons_without_the_secret(bucket: ObjectStore) -> None:
    for changes in ({"AWS_SECRET_ACCESS_KEY": "wrong"}, {"AWS_ACCESS_KEY_ID": "nobody"}):
        with pytest.raises(BackupFailed, match=LOCATION) as caught:
            bucket.store(**changes).list()

        assert "the-secret" not in str(caught.value)
        assert "\n" not in str(caught.value)


def portside(environment: Mapping[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_command("backup", *arguments, environment={**os.environ, "DATABASE_URL": "", **environment})


async def problems(server: ServerProcess) -> dict[str, Any]:
    async with httpx2.AsyncClient() as http:
        response = await http.get(f"{server.url}/ok")
        assert response.status_code == 200, "a failed backup does not take the platform down"
        found: dict[str, Any] = response.json().get("problems", {})
        return found


async def watch(bucket: ObjectStore, server: ServerProcess, home: Path, environment: Mapping[str, str]) -> None:
    store = bucket.store()

    async def were_pruned() -> bool:
        return len(read_attempts(home)) > 4 and len(list_stored_backups(store)) == 2

    await eventually(were_pruned)
    assert await problems(server) == {}
    await asyncio.to_thread(bucket.stop)

    async def is_shown() -> bool:
        return "backup" in await problems(server)

    await eventually(is_shown)
    status = await asyncio.to_thread(portside, environment, "status", "--home", str(home))
    assert (status.returncode, "s3://bucket-of-backups" in status.stderr) == (1, True), status.stderr
    said = server.log.read_text()
    assert "the scheduled backup failed" in said
    assert re.search(r"the scheduled backup was taken.* [1-9]\d* older files were deleted", said)
    bucket.start()

    async def is_well() -> bool:
        return await problems(server) == {}

    await eventually(is_well)
    assert [file.name for file in store.list() if "torn" in file.name] == []


def test_platform_backs_itself_up(bucket: ObjectStore, tmp_path: Path) -> None:
    home = tmp_path / "a home"
    environment = {
        **bucket.environment,
        "BACKUP_TO": LOCATION,
        "BACKUP_EVERY_HOURS": "0.0002",
        "BACKUP_KEEP": "2",
        "BACKUP_KEEP_DAYS": "0",
        "BACKUP_POINT_IN_TIME": "true",
        "PORTSIDE_BACKUP_PASSPHRASE": PASSPHRASE,
        "LOG_LEVEL": "INFO",
    }

    with platform_server(home, **environment) as server:
        asyncio.run(watch(bucket, server, home, environment))
        response = httpx2.get(f"{server.url}/system", headers=HEADERS)
        assert PASSPHRASE not in response.text
        assert PASSPHRASE not in server.log.read_text()

    assert portside(environment, "run", "--home", str(home)).returncode == 0, "also while the platform is stopped"
    listed = portside(environment, "list", LOCATION)
    assert listed.stdout.count(".backup") == 2, listed.stderr
    done = portside(environment, "restore", LOCATION, "--home", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "api-key").read_bytes() == (home / "api-key").read_bytes()


def test_unusable_settings_are_refused_at_start(tmp_path: Path) -> None:
    for environment, reason in (
        ({"BACKUP_TO": str(tmp_path)}, "needs a passphrase"),
        ({"BACKUP_TO": str(tmp_path), "PORTSIDE_BACKUP_PASSPHRASE": "short"}, "at least 12"),
        ({"BACKUP_TO": "gs://x", "PORTSIDE_BACKUP_PASSPHRASE": PASSPHRASE, "BACKUP_POINT_IN_TIME": "1"}, "neither"),
        ({"BACKUP_POINT_IN_TIME": "true"}, "needs BACKUP_TO"),
    ):
        with pytest.raises(AssertionError, match=reason), platform_server(tmp_path / "home", **environment):
            pass
