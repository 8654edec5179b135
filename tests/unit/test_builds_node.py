"""Node in a build: which commands run and where, which package managers are trusted, and what is removed again.

`tests/db/test_builds_projects.py` runs the package managers themselves.
"""

import base64
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from portside.dataplane.builds import node
from portside.dataplane.builds.commands import CommandOutcome
from portside.dataplane.builds.config import read_config
from portside.dataplane.builds.javascript import JavaScript, Scripts
from portside.dataplane.builds.node import NodeTools, NodeVersions, PackageManager
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput

ARCHIVE = b"the package of pnpm"
DIGEST = hashlib.sha512(ARCHIVE)


@dataclasses.dataclass(frozen=True)
class Tools(NodeTools):
    """Runs nothing, and notes the commands with their folders. `npm pack` writes an archive."""

    ran: list[tuple[str, Path]] = dataclasses.field(default_factory=list)

    async def install(self, versions: NodeVersions) -> None: ...

    async def run(
        self,
        arguments: list[str],
        cwd: Path,
        output: MaskedOutput | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> CommandOutcome:
        if arguments[:2] == ["npm", "pack"]:
            (cwd / "pnpm.tgz").write_bytes(ARCHIVE)
        if arguments[:2] == ["npm", "install"]:
            (cwd / "node_modules" / ".bin").mkdir(parents=True)

        command = arguments[-1] if arguments[0] == "/bin/sh" else " ".join(arguments[:2])
        self.ran.append((command, cwd))
        return CommandOutcome(0, [])

    async def _has_manager(self, manager: PackageManager, cwd: Path) -> bool:
        return False


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path / "build", MaskedOutput(lambda _line: None))


@pytest.mark.parametrize(
    ("scripts", "keys", "expected"),
    [
        (Scripts(), {}, ["npm i"]),
        (Scripts(), {"install_command": "npm ci", "build_command": "npm run site"}, ["npm ci", "npm run site"]),
        (
            Scripts(install="npm i --omit=dev", build="npm run all"),
            {"install_command": "npm ci", "build_command": "npm run site"},
            ["npm i --omit=dev", "npm run all"],
        ),
        (Scripts(build="npm run all"), {"install_command": "npm ci"}, ["npm ci", "npm run all"]),
    ],
)
async def test_commands_of_a_deployment_replace_those_of_the_file_and_these_the_usual_ones(
    tools: Tools, tmp_path: Path, scripts: Scripts, keys: dict[str, str], expected: list[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "package.json").write_text('{"dependencies": {}}')
    (source / "langgraph.json").write_text(json.dumps({"graphs": {"a": "./a.ts:graph"}, **keys}))

    await JavaScript(source, tools).install_and_build(read_config(source, "langgraph.json"), scripts)

    assert tools.ran == [(command, source) for command in expected]


async def test_commands_run_where_only_the_folder_of_the_configuration_file_has_a_package(
    tools: Tools, tmp_path: Path
) -> None:
    app = tmp_path / "source" / "app"
    app.mkdir(parents=True)
    (app / "package.json").write_text('{"dependencies": {}}')
    (app / "langgraph.json").write_text('{"graphs": {"a": "./a.py:graph"}}')

    config = read_config(tmp_path / "source", "app/langgraph.json")
    await JavaScript(tmp_path / "source", tools).install_and_build(config, Scripts(build="npm run site"))

    assert tools.ran == [("npm i", app), ("npm run site", app)]


async def test_a_project_is_installed_in_its_root_and_built_beside_its_configuration_file(
    tools: Tools, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    app = source / "app"
    app.mkdir(parents=True)
    (source / "package.json").write_text('{"dependencies": {}}')
    (app / "package.json").write_text('{"scripts": {"site": "node site.js"}}')
    (app / "langgraph.json").write_text('{"graphs": {"a": "./a.py:graph"}}')

    config = read_config(source, "app/langgraph.json")
    await JavaScript(source, tools).install_and_build(config, Scripts(build="npm run site"))

    assert tools.ran == [("npm i", source), ("npm run site", app)]


@pytest.mark.parametrize(
    "checksum",
    [f"sha512.{DIGEST.hexdigest()}", f"sha512.{base64.b64encode(DIGEST.digest()).decode()}", None],
    ids=["hexadecimal", "base64", "none"],
)
async def test_a_package_manager_with_its_checksum_is_installed(tools: Tools, checksum: str | None) -> None:
    await tools.add_manager(PackageManager("pnpm", "9.12.0", checksum), tools.build)

    assert [command for command, _ in tools.ran] == ["npm pack", "npm install"]


@pytest.mark.parametrize(
    ("checksum", "reason"),
    [
        (f"sha512.{'0' * 128}", "of the registry does not have the checksum"),
        (f"sha512.{DIGEST.hexdigest()[:-1]}", "of the registry does not have the checksum"),
        ("sha512.", "of the registry does not have the checksum"),
        ("crc32.abc", "'crc32' is not supported"),
    ],
)
async def test_a_package_manager_with_another_checksum_is_never_installed(
    tools: Tools, checksum: str, reason: str
) -> None:
    with pytest.raises(BuildFailed, match=reason):
        await tools.add_manager(PackageManager("pnpm", "9.12.0", checksum), tools.build)

    assert [command for command, _ in tools.ran] == ["npm pack"]


@pytest.mark.parametrize(
    ("wanted", "installed", "fits"),
    [
        ("9.12.0", "9.12.0", True),
        ("9.12.0", "9.12.1", False),
        ("9", "9.12.1", True),
        ("^9.1", "9.12.1", True),
        ("9", "10.0.0", False),
    ],
)
def test_an_exact_version_of_a_package_manager_is_met_by_itself_alone(
    wanted: str, installed: str, *, fits: bool
) -> None:
    assert PackageManager("pnpm", wanted).is_met_by(installed) is fits


def test_programs_of_node_get_no_secret_of_the_listener(tools: Tools) -> None:
    given = {
        "PATH": "/bin",
        "npm_config_registry": "https://registry.example",
        "NODE_EXTRA_CA_CERTS": "/ca.pem",
        "PROVISION_DATABASE_URL": "postgresql://x",
        "CONTROL_PLANE_API_KEY": "key",
    }
    environment = tools.environment(given)

    assert environment["npm_config_registry"] == "https://registry.example"
    assert environment["NODE_EXTRA_CA_CERTS"] == "/ca.pem"
    assert environment["PATH"].endswith(":/bin")
    assert not {"PROVISION_DATABASE_URL", "CONTROL_PLANE_API_KEY"} & environment.keys()


def test_executors_of_other_versions_are_removed_after_a_day_without_a_build(tmp_path: Path) -> None:
    for name in ("current", "recent", "old"):
        (tmp_path / name).mkdir()

    for name in ("current", "old"):
        os.utime(tmp_path / name, (0, 0))

    node._remove_old(tmp_path / "current")
    assert {path.name for path in tmp_path.iterdir()} == {"current", "recent"}
