"""The package cache that builds share: in the platform's home, and limited in size."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from portside.dataplane.builds.caches import cache_folder, limit_cache, node_cache_folder
from portside.dataplane.builds.config import read_config
from portside.dataplane.builds.environment import Environment
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_CACHE_DIR")


@pytest.mark.usefixtures("own_cache")
async def test_environment_is_created_without_writable_home(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", "/dev/null/nobody")
    (tmp_path / "graph.json").write_text('{"dependencies": [], "graphs": {"a": "./a.py:a"}}')
    (tmp_path / "a.py").write_text("a = None\n")

    config = read_config(tmp_path, "graph.json")
    environment = Environment(tmp_path, MaskedOutput(lambda *_: None, []), cache_folder(tmp_path / "dataplane"))
    with pytest.raises(BuildFailed, match=r"dependencies cannot be installed[\s\S]*missing.whl"):
        await environment.create(config, tmp_path / "missing.whl")

    assert (tmp_path / "venv" / "bin" / "python").exists()
    assert (tmp_path / "dataplane" / "uv-cache").is_dir()


@pytest.mark.usefixtures("own_cache")
async def test_cache_above_limit_is_emptied(tmp_path: Path):
    archive = tmp_path / "uv-cache" / "archive-v0" / "abc"
    archive.mkdir(parents=True)
    (archive / "package.py").write_bytes(b"x" * 5000)
    await limit_cache(tmp_path, 10_000)
    assert (archive / "package.py").exists()

    with capture_logs() as logged:
        await limit_cache(tmp_path, 1000)

    assert [(each["event"], each["freed_bytes"] >= 5000) for each in logged] == [("a build cache was pruned", True)]
    assert not archive.exists()
    await limit_cache(tmp_path, 1000)


@pytest.mark.usefixtures("own_cache")
async def test_caches_of_node_are_limited_too(tmp_path: Path):
    uv = tmp_path / "uv-cache" / "wheels"
    npm = node_cache_folder(tmp_path) / "npm"
    for folder, size in ((uv, 2000), (npm, 5000)):
        folder.mkdir(parents=True)
        (folder / "package").write_bytes(b"x" * size)

    await limit_cache(tmp_path, 8000)
    assert (npm / "package").exists()
    await limit_cache(tmp_path, 4000)
    assert not npm.exists()
    assert uv.parent.exists()


async def test_operators_cache_folder_is_left_alone(tmp_path: Path, monkeypatch):
    named = tmp_path / "shared"
    named.mkdir()
    await asyncio.to_thread((named / "package").write_bytes, b"x" * 5000)
    monkeypatch.setenv("UV_CACHE_DIR", str(named))
    await limit_cache(tmp_path, 0)
    assert cache_folder(tmp_path) == named
    assert (named / "package").exists()
