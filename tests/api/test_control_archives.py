"""Source archives over HTTP: upload addresses, their files, revisions from them, and the listener's download.

A revision is created only from an archive that was uploaded to an address of its own deployment.
"""

import asyncio
import gzip
import os
from collections.abc import AsyncIterator
from urllib.parse import urlsplit
from uuid import UUID

import pytest
import pytest_asyncio

from portside.control import archive_store, archives
from portside.control.archive_store import ArchiveStore
from portside.control.archives import UnusedArchives, UploadNotExpected, receive_archive
from tests.api.control_server import control
from tests.small_disk import needs_small_disk, small_disk

pytestmark = pytest.mark.asyncio(loop_scope="module")
ARCHIVE = gzip.compress(b"as good as a tar file, to who does not unpack it")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(platform_database):
    async with control(platform_database) as platform:
        yield platform


async def make(platform, name: str):
    """A deployment that waits for its first archive, as command-line clients make it."""
    body = {"name": name, "source": "internal_source", "source_config": {}, "source_revision_config": {}}
    response = await platform.client.post("/v2/deployments", json=body)
    assert response.status_code == 201, response.text
    return response.json()


async def address(platform, deployment_id: str, **body):
    response = await platform.client.post(f"/v2/deployments/{deployment_id}/upload-url", json=body or None)
    assert response.status_code == 200, response.text
    return response.json()


async def put(platform, url: str, content: bytes, **options):
    """As a client without a key does."""
    headers = {"x-api-key": "", "content-type": "application/gzip"}
    return await platform.client.put(url, content=content, headers=headers, **options)


def build_revision(path: str):
    return {
        "revision_source": "internal_source",
        "source_revision_config": {"source_tarball_path": path, "langgraph_config_path": "langgraph.json"},
    }


async def test_an_archive_becomes_a_revision_and_reaches_the_listener(platform) -> None:
    made = await make(platform, "whole")
    where = await address(platform, made["id"], supports_upload_headers=True)
    assert where["upload_url"].startswith(str(platform.client.base_url).rstrip("/"))
    assert where["upload_headers"] == {"Content-Type": "application/gzip"}
    assert (await put(platform, where["upload_url"], ARCHIVE)).status_code == 204
    patched = await platform.patch(made["id"], **build_revision(where["object_path"]))
    revision = (await platform.revisions(made["id"]))[0]
    assert patched["latest_revision_id"] == revision["id"]

    assert revision["source_revision_config"]["source_tarball_path"] == where["object_path"]
    path = f"/internal/deployments/{made['id']}/revisions/{revision['id']}/archive"
    response = await platform.client.get(path)
    assert (response.status_code, response.headers["content-type"], response.content) == (
        200,
        "application/gzip",
        ARCHIVE,
    )
    refused = await platform.client.get(path, headers=await platform.headers("deployments:read"))
    assert refused.status_code == 403


async def test_an_address_takes_one_archive_and_only_with_its_token(platform) -> None:
    made = await make(platform, "once")
    url = (await address(platform, made["id"]))["upload_url"]
    for wrong in (url.split("?")[0], url[:-1], url.replace(url.split("/")[-1][:8], "00000000")):
        refused = await put(platform, wrong, ARCHIVE)
        assert refused.status_code == 401, wrong

    assert (await put(platform, url, ARCHIVE)).status_code == 204
    assert (await put(platform, url, ARCHIVE)).status_code == 401


async def test_a_refused_archive_can_be_uploaded_again(platform, monkeypatch) -> None:
    made = await make(platform, "again")
    url = (await address(platform, made["id"]))["upload_url"]
    for nothing in (b"", b"PK\x03\x04"):
        assert (await put(platform, url, nothing)).json()["detail"].startswith("The uploaded file is not a gzip file")

    monkeypatch.setattr(archive_store, "MAX_ARCHIVE_BYTES", 1_500_000)
    assert (await put(platform, url, b"\x1f\x8b" + os.urandom(1_500_000))).status_code == 413
    assert not await list_partial_files(platform)
    assert (await put(platform, url, b"\x1f\x8b" + os.urandom(1_400_000))).status_code == 204


async def list_partial_files(platform) -> list[str]:
    folder = platform.services.archives.path(UUID(int=0)).parent
    return [file.name for file in folder.iterdir() if file.name.endswith(".partial")]


async def test_an_expired_address_takes_nothing(platform, monkeypatch) -> None:
    monkeypatch.setattr(archives, "UPLOAD_WITHIN_S", -1.0)
    made = await make(platform, "late")
    url = (await address(platform, made["id"]))["upload_url"]
    assert (await put(platform, url, ARCHIVE)).status_code == 401


async def test_two_uploads_at_once_leave_one_archive(platform) -> None:
    made = await make(platform, "race")
    url = (await address(platform, made["id"]))["upload_url"]
    responses = await asyncio.gather(*(put(platform, url, ARCHIVE) for _ in range(6)))
    statuses = [response.status_code for response in responses]
    assert statuses.count(204) == 1
    assert set(statuses) <= {204, 401, 409}


async def test_an_upload_that_another_process_finished_first_changes_nothing(platform) -> None:
    made = await make(platform, "overtaken")
    where = urlsplit((await address(platform, made["id"]))["upload_url"])
    archive_id = UUID(where.path.rsplit("/", 1)[-1])
    store = platform.services.archives

    async def chunks() -> AsyncIterator[bytes]:
        yield ARCHIVE
        await platform.db.pool.execute("update source_archives set uploaded_at = now() where id = $1", archive_id)

    with pytest.raises(UploadNotExpected):
        await receive_archive(platform.db, store, archive_id, token=where.query.removeprefix("token="), chunks=chunks())

    assert not store.path(archive_id).exists()
    assert not await list_partial_files(platform)


@pytest.mark.parametrize(
    "path", ["uploads/x.tar.gz", "../../etc/passwd", "uploads/{id}/{id}.tar.gz", "{unput}", "{others}"]
)
async def test_a_path_that_was_not_issued_to_the_deployment_makes_no_revision(platform, path: str) -> None:
    name = f"strange-{abs(hash(path))}"
    made = await make(platform, name)
    other = await make(platform, f"{name}-other")
    others = await address(platform, other["id"])

    await put(platform, others["upload_url"], ARCHIVE)
    unput = (await address(platform, made["id"]))["object_path"]
    named = path.format(id=made["id"], unput=unput, others=others["object_path"])
    response = await platform.client.patch(f"/v2/deployments/{made['id']}", json=build_revision(named))
    assert response.status_code == 400, response.text
    assert "source_tarball_path" in response.json()["detail"]
    assert (await platform.get(made["id"]))["latest_revision_id"] is None


async def test_unused_archives_are_deleted_and_used_ones_kept(platform, monkeypatch) -> None:
    store = platform.services.archives
    chore = UnusedArchives(platform.db, store)
    made = await make(platform, "kept")

    used, unused = [await address(platform, made["id"]) for _ in range(2)]
    for where in (used, unused):
        assert (await put(platform, where["upload_url"], ARCHIVE)).status_code == 204

    await platform.patch(made["id"], **build_revision(used["object_path"]))
    files = [store.path(UUID(urlsplit(where["upload_url"]).path.rsplit("/", 1)[-1])) for where in (used, unused)]
    # A file appears shortly before its row is committed.
    young = store.path(UUID(int=7))
    young.touch()
    await chore.activate()
    assert young.exists()
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    monkeypatch.setattr(archives, "UNUSED_FOR_S", 0.0)
    monkeypatch.setattr(archive_store, "GARBAGE_AFTER_S", {".tar.gz": 0.0})

    # A foreign file stops nothing.
    files[0].with_name("copy-of-an-archive.tar.gz").touch()
    await chore.activate()
    assert [file.exists() for file in files] == [True, False]
    await platform.client.delete(f"/v2/deployments/{made['id']}")
    assert (await platform.listener.drop(made["id"])).status_code == 204
    await chore.activate()
    assert [file.exists() for file in files] == [False, False]


async def test_unused_upload_addresses_are_limited(platform, monkeypatch) -> None:
    monkeypatch.setattr(archives, "UNUSED_KEPT", 2)
    made = await make(platform, "many")
    used = await address(platform, made["id"])
    assert (await put(platform, used["upload_url"], ARCHIVE)).status_code == 204
    await platform.patch(made["id"], **build_revision(used["object_path"]))
    urls = [(await address(platform, made["id"]))["upload_url"] for _ in range(3)]
    assert [(await put(platform, url, ARCHIVE)).status_code for url in urls] == [401, 204, 204]
    # The archive of a revision is not one of them.
    await platform.patch(made["id"], **build_revision(used["object_path"]))


async def test_upload_url_is_refused_for_deleted_or_unknown_deployments(platform) -> None:
    made = await make(platform, "gone")
    await platform.client.delete(f"/v2/deployments/{made['id']}")
    path = "/v2/deployments/{}/upload-url"
    assert (await platform.client.post(path.format(made["id"]))).status_code == 409
    assert (await platform.client.post(path.format(UUID(int=1)))).status_code == 404


async def test_upload_url_uses_the_proxy_address_of_the_client(platform) -> None:
    made = await make(platform, "proxied")
    headers = {"x-forwarded-proto": "https", "host": "platform.example"}
    response = await platform.client.post(f"/v2/deployments/{made['id']}/upload-url", headers=headers)
    assert response.json()["upload_url"].startswith("https://platform.example/v2/uploads/")


@needs_small_disk
async def test_an_upload_that_fills_the_disk_leaves_no_file(tmp_path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield ARCHIVE
        disk.fill()
        yield b"x" * 100

    with small_disk(tmp_path / "disk", 4) as disk:
        store = ArchiveStore(disk.path / "archives")
        with pytest.raises(OSError, match="No space left"):
            async with store.open_upload(UUID(int=1)) as partial:
                await partial.write(chunks())

        assert list((disk.path / "archives").iterdir()) == []
