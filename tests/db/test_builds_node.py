"""What executes JavaScript graphs is fetched once for each version, and every build has a copy of its own."""

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from portside.dataplane.builds.caches import node_cache_folder
from portside.dataplane.builds.node import (
    RUNTIMES,
    NodeTools,
    NodeVersions,
    node_settings,
    provide_node,
    runtime_folder,
    update_runtime,
)
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput
from tests.node_packages import BUILT, javascript_runtime

UNREACHABLE = "http://127.0.0.1:9/"


@pytest.fixture(autouse=True)
def needs_executor() -> None:
    javascript_runtime()


async def prepare(dataplane: Path, name: str) -> tuple[Path, str]:
    """Prepare a build; return its folder and the log."""
    lines: list[str] = []
    build = dataplane / "deployments" / name
    build.mkdir(parents=True)
    tools = NodeTools(build, MaskedOutput(lines.append), None, node_cache_folder(dataplane))

    await tools.install(NodeVersions())
    await tools.add_runtime(dataplane / RUNTIMES)
    return build, "\n".join(lines)


class Prepared(NamedTuple):
    """A folder with one build, and its log."""

    dataplane: Path
    build: Path
    log: str


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    javascript_runtime()
    dataplane = tmp_path_factory.mktemp("dataplane")
    return Prepared(dataplane, *asyncio.run(prepare(dataplane, "first")))


async def test_second_build_needs_no_registry(prepared: Prepared, monkeypatch: pytest.MonkeyPatch):
    folder, first, log = prepared
    assert "once for this version" in log
    monkeypatch.setenv("npm_config_registry", UNREACHABLE)
    second, log = await prepare(folder, "second")
    assert log == ""
    main = Path("main.mjs")
    assert (runtime_folder(second) / main).samefile(runtime_folder(first) / main)

    settings = node_settings(second)
    command = [settings["EXECUTOR_NODE"], "--version"]
    shown = await asyncio.to_thread(subprocess.check_output, command, text=True)
    assert shown.startswith("v")
    assert (Path(settings["EXECUTOR_JAVASCRIPT"]) / "node_modules" / "tsx").is_dir()

    # A server that is not built takes the same.
    _node, runtime = await provide_node(folder, NodeVersions(), MaskedOutput(lambda _line: None))
    assert (runtime / main).samefile(runtime_folder(first) / main)


async def test_missing_registry_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("npm_config_registry", UNREACHABLE)
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(BuildFailed, match=r"(?s)fetched once for each version of Portside from npm's registry: .*9/"):
        await prepare(tmp_path, "first")

    assert not list((tmp_path / RUNTIMES).iterdir())


async def test_build_of_earlier_version_is_renewed(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, first, _log = prepared
    program = runtime_folder(first) / "main.mjs"
    program.unlink()
    program.write_text("// an earlier version")
    await update_runtime(first, folder)
    assert program.read_bytes() == (BUILT / "main.mjs").read_bytes()

    # It is kept while the current one cannot be had.
    program.unlink()
    program.write_text("// an earlier version")
    (folder / RUNTIMES).rename(folder / "lost")
    monkeypatch.setenv("npm_config_registry", UNREACHABLE)
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "empty"))
    await update_runtime(first, folder)

    assert program.read_text() == "// an earlier version"
    shutil.rmtree(folder / RUNTIMES, ignore_errors=True)
    (folder / "lost").rename(folder / RUNTIMES)
    await update_runtime(first, folder)
    assert program.read_bytes() == (BUILT / "main.mjs").read_bytes()
