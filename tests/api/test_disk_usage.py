"""What takes the space of a platform: the report agrees with `du` and with Postgres within 5 %."""

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest

from portside.kernel.db import Database
from portside.kernel.embedded import EmbeddedPostgres
from portside.operate.sql import sql
from tests.api.control_server import create_body
from tests.commands import run_here
from tests.servers import KEY, ServerProcess, platform_server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sized") / "home"


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ServerProcess]:
    with platform_server(home, PORTSIDE_OWN_LISTENER="false") as running:
        yield running


@pytest.fixture(scope="module")
def deployment(server: ServerProcess, home: Path) -> UUID:
    """A deployment with a build, logs and a cache of which the build has links, as a listener leaves them."""
    headers = {"X-Api-Key": KEY}
    body = create_body("sized")
    response = httpx2.post(f"{server.url}/v2/deployments", json=body, headers=headers, timeout=300)
    response.raise_for_status()

    deployment_id = UUID(response.json()["id"])
    folder = home / "dataplane" / "deployments" / str(deployment_id)
    build = folder / "revisions" / str(deployment_id)
    cache = home / "dataplane" / "uv-cache"
    for made_folder in (build, cache, folder / "logs", home / "archives"):
        made_folder.mkdir(parents=True, exist_ok=True)

    (cache / "package").write_bytes(os.urandom(3_000_000))
    (build / "package").hardlink_to(cache / "package")
    (build / "own").write_bytes(os.urandom(2_000_000))
    (build / "built.json").write_text("{}")
    (folder / "logs" / "server.log").write_bytes(b"x" * 500_000)
    (home / "archives" / "one").write_bytes(os.urandom(1_000_000))
    EmbeddedPostgres(home).create_database(f"agent_{deployment_id.hex}")

    asyncio.run(fill_database(home, f"agent_{deployment_id.hex}"))
    return deployment_id


async def fill_database(home: Path, name: str) -> None:
    """Fill a database as an agent server does."""
    connection = await asyncpg.connect(EmbeddedPostgres(home).url(name))
    try:
        await connection.execute("create schema portside")
        await connection.execute("create table portside.checkpoints (id int primary key, value text)")
        await connection.execute("create table public.notes (id int)")
        await connection.execute(
            "insert into portside.checkpoints select n, repeat(md5(n::text), 60) from generate_series(1, 5000) n"
        )

        # New pages take no blocks before they are written.
        await connection.execute("checkpoint")
    finally:
        await connection.close()


def sizes(report: dict[str, Any], deployment: UUID | None) -> dict[str, int]:
    named = None if deployment is None else str(deployment)
    return {each["kind"]: each["bytes"] for each in report["taken"] if each["deployment_id"] == named}


def measure_with_du(folder: Path) -> int:
    """Return the bytes of a folder. Its status is no matter: Postgres removes files while `du` looks at them."""
    command = ["du", "-s", "--block-size=1", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return int(done.stdout.split()[0])


async def test_report_agrees_with_du_and_postgres(server: ServerProcess, home: Path, deployment: UUID):
    name = f"agent_{deployment.hex}"
    connection = await asyncpg.connect(EmbeddedPostgres(home).url(name))
    of_checkpoints = await connection.fetchval("select pg_total_relation_size('portside.checkpoints')")
    await connection.close()

    async with httpx2.AsyncClient(base_url=server.url, headers={"X-Api-Key": KEY}, timeout=300) as client:
        report = (await client.get("/system/disk")).raise_for_status().json()

    taken = await asyncio.to_thread(measure_with_du, home)
    assert report["home_bytes"] == pytest.approx(taken, rel=0.05)
    async with httpx2.AsyncClient(base_url=server.url, headers={"X-Api-Key": KEY}, timeout=300) as client:
        disk = (await client.get("/system")).raise_for_status().json()["disk"]

    assert disk["total_bytes"] == report["total_bytes"], "one page says the same as the other"
    assert sum(each["bytes"] for each in report["taken"]) == pytest.approx(taken, rel=0.05)
    of_deployment = sizes(report, deployment)
    of_platform = sizes(report, None)
    assert of_deployment["checkpoints"] == pytest.approx(of_checkpoints, rel=0.05)

    # The package is in the cache too, and counts there.
    assert of_deployment["builds"] == pytest.approx(2_000_000, rel=0.05)
    assert of_deployment["logs"] == pytest.approx(500_000, rel=0.05)
    assert of_platform["build cache"] == pytest.approx(3_000_000, rel=0.05)
    assert of_platform["archives"] == pytest.approx(1_000_000, rel=0.05)
    # One segment of the log at least; those of tests have 1 MB.
    assert of_platform["write-ahead log"] > 1_000_000
    assert of_platform["traces"] > 0
    assert {each["deployment"] for each in report["taken"]} == {None, "sized"}
    assert not [each for each in report["databases"] if each["problem"]]
    database = next(each for each in report["databases"] if each["name"] == name)
    in_database = sum(
        each["bytes"] for each in report["taken"] if each["place"] == "database" and each["deployment_id"]
    )
    assert in_database == pytest.approx(database["bytes"], rel=0.05)


async def test_database_that_is_dropped_meanwhile_is_left_out(server: ServerProcess, home: Path):
    database = await Database.connect(EmbeddedPostgres(home).url("postgres"), max_size=2)
    try:
        await database.pool.execute("create database dropped")
        # The snapshot still lists the database when its size is measured.
        async with database.transaction(isolation="repeatable_read") as tx:
            assert "dropped" in {row["name"] for row in await tx.fetch(sql.databases_by_size)}
            await database.pool.execute("drop database dropped")
            rows = await tx.fetch(sql.databases_by_size)

        assert "dropped" not in {row["name"] for row in rows}
        assert all(row["bytes"] is not None for row in rows)
    finally:
        await database.close()


async def test_table_that_is_dropped_meanwhile_takes_no_space(server: ServerProcess, home: Path):
    database = await Database.connect(EmbeddedPostgres(home).url("postgres"), max_size=2)
    try:
        await database.pool.execute("create table dropped as select 1")
        # The snapshot still lists the table when its size is measured.
        async with database.transaction(isolation="repeatable_read") as tx:
            assert "dropped" in {row["name"] for row in await tx.fetch(sql.table_sizes)}
            await database.pool.execute("drop table dropped")
            rows = await tx.fetch(sql.table_sizes)

        assert {row["name"]: row["bytes"] for row in rows}["dropped"] == 0
    finally:
        await database.close()


def test_command_shows_kinds_and_deployments(server: ServerProcess, home: Path, deployment: UUID):
    done = run_here("disk", "--url", server.url, "--api-key", KEY)
    assert done.returncode == 0, done.stderr
    assert "in reserve" in done.stdout
    assert re.search(r"^Portside takes [\d.]+ MB$", done.stdout, re.MULTILINE)
    assert "build cache" in done.stdout
    assert "sized" in done.stdout
    assert '"shortage": null' in run_here("disk", "--url", server.url, "--api-key", KEY, "--json").stdout


async def test_only_those_who_manage_the_organization_see_it(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
        assert (await client.get("/system/disk")).status_code == 401
        body = {"description": "limited", "permissions": ["deployments:read"]}
        key = (await client.post("/api-key", json=body, headers={"X-Api-Key": KEY})).raise_for_status().json()["key"]
        assert (await client.get("/system/disk", headers={"X-Api-Key": key})).status_code == 403
