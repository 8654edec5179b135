"""Parts of a build that need no program: masking, install commands, addresses, pip configuration, versions."""

import asyncio
import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import portside
from portside.dataplane.builds import node
from portside.dataplane.builds.build import ExecutorFiles, Layout, choose_layout
from portside.dataplane.builds.commands import CommandOutcome
from portside.dataplane.builds.config import BuildConfig, read_config, read_pip_config
from portside.dataplane.builds.conflicts import explain_conflict, find_missing_requirement, read_pins
from portside.dataplane.builds.environment import Environment, has_only_locked
from portside.dataplane.builds.git import GitSource, is_local, split_credential
from portside.dataplane.builds.javascript import (
    find_install_roots,
    find_missing_packages,
    find_package_manager,
    install_command,
    read_node_versions,
)
from portside.dataplane.builds.node import NodeTools, NodeVersions, PackageManager, find_decisive_lines
from portside.dataplane.builds.pyproject import is_project, is_virtual, list_suitable_versions, read_required_python
from portside.dataplane.builds.wheel import is_behind
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput
from portside.listener_api import Secret
from tests.conftest import eventually


def test_output_masks_values_in_every_form():
    lines: list[str] = []
    output = MaskedOutput(lines.append, ["s3cret/val ue", "short", "true", "first line\nsecond line", "s3cret"])
    assert output.write("a s3cret/val ue and true") == "a *** and true"
    output.write("http://h/?q=s3cret%2Fval%20ue")
    output.write("https://user:pw@host/x")
    output.write("first line, second line, s3cret")
    assert lines == ["a *** and true", "http://h/?q=***", "https://***@host/x", "***, ***, ***"]

    assert output.silent().write("s3cret/val ue") == "***"
    assert len(lines) == 4


def test_output_stops_at_line_limit():
    lines: list[str] = []
    output = MaskedOutput(lines.append, max_lines=3)
    for number in range(100):
        output.write(f"line {number}")

    assert lines == ["line 0", "line 1", "line 2", "The build has written 3 lines; the rest is left out"]


@pytest.mark.parametrize(
    ("url", "address", "secret"),
    [
        ("https://user:p%40ss@host:8443/x.git", "https://host:8443/x.git", ("user", "p@ss")),
        ("https://token@host/x", "https://host/x", ("token", "")),
        ("https://host/x", "https://host/x", ("own", "credential")),
        ("ssh://git:dropped@host/x", "ssh://git@host/x", None),
        ("git@host:a/b.git", "git@host:a/b.git", None),
        ("/a/folder", "/a/folder", None),
    ],
)
def test_address_of_separates_credentials(url: str, address: str, secret: tuple[str, str] | None):
    found, given = split_credential(url, Secret("own", "credential"))
    assert found == address
    assert (None if given is None else (given.name, given.value)) == secret

    # The build log masks the password, or what is alone in its place.
    source = GitSource(url, "main", None, 1, Secret("own", "credential"))
    assert source.secrets == ([] if secret is None else [secret[1] or secret[0]])
    if secret is not None:
        assert f"{secret[0]}:" not in source.title
        assert f"{secret[0]}@" not in source.title


def test_is_local_recognises_local_folders():
    assert all(map(is_local, ["/a", "../a", "file:///a", "./a:b"]))
    assert not any(map(is_local, ["git@host:a", "host:a", "https://h/a", "git://h/a"]))


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (["yarn.lock", "pnpm-lock.yaml", "package-lock.json", "bun.lockb"], "yarn install --frozen-lockfile"),
        (["pnpm-lock.yaml", "package-lock.json", "bun.lockb"], "pnpm i --frozen-lockfile"),
        (["package-lock.json", "bun.lockb"], "npm ci"),
        (["npm-shrinkwrap.json", "bun.lock"], "npm ci"),
        (["bun.lockb"], "bun i"),
        (["bun.lock"], "bun i"),
        ([], "npm i"),
    ],
)
def test_lock_file_sets_install_command(tmp_path: Path, files: list[str], command: str):
    (tmp_path / "package.json").write_text(json.dumps({"packageManager": "npm@10"}))
    for name in files:
        (tmp_path / name).write_text("")

    assert install_command(tmp_path) == command


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ({"packageManager": "yarn@1.22.22"}, "yarn install"),
        ({"packageManager": "yarn@4.1.0"}, "yarn install --no-immutable"),
        ({"packageManager": "^pnpm@9"}, "pnpm i"),
        ({"packageManager": "bun@1", "devEngines": {"packageManager": {"name": "yarn"}}}, "bun i"),
        ({"devEngines": {"packageManager": {"name": "pnpm"}}}, "pnpm i"),
        ({"devEngines": {"packageManager": [{"name": "pnpm"}]}}, "npm i"),
        ({"packageManager": 7, "devEngines": None}, "npm i"),
        ({"packageManager": "npm@10"}, "npm i"),
    ],
)
def test_package_json_sets_install_command(tmp_path: Path, package: dict[str, object], command: str):
    (tmp_path / "package.json").write_text(json.dumps(package))
    assert install_command(tmp_path) == command


@pytest.mark.parametrize(
    ("files", "manager"),
    [
        (
            {"package.json": '{"packageManager": "yarn@4.1.0"}', "pnpm-lock.yaml": "lockfileVersion: '6.0'"},
            ("pnpm", "8"),
        ),
        ({"package.json": '{"packageManager": "pnpm@9.1.2+sha512.ab"}'}, ("pnpm", "9.1.2", "sha512.ab")),
        ({"package.json": '{"packageManager": "pnpm@9.1.2"}', "pnpm-lock.yaml": ""}, ("pnpm", "9.1.2")),
        ({"package.json": '{"packageManager": "pnpm@--registry=http://h"}'}, ("pnpm", "10")),
        ({"yarn.lock": '# yarn lockfile v1\n\na@1:\n  version "7.0.0"\n'}, ("yarn", "1")),
        ({"yarn.lock": "__metadata:\n  version: 8\n  cacheKey: 10\n"}, ("yarn", "4")),
        ({"yarn.lock": "__metadata:\n  version: 6\n"}, ("yarn", "3")),
        ({"package.json": '{"devEngines": {"packageManager": {"name": "yarn", "version": "^4.0"}}}'}, ("yarn", "^4.0")),
    ],
)
def test_version_of_package_manager(tmp_path: Path, files: dict[str, str], manager: tuple[str, ...]):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert find_package_manager(tmp_path) == PackageManager(*manager)


def test_newer_yarn_is_another_package():
    assert PackageManager("yarn", "^4.0").package == PackageManager("yarn", "3").package == "@yarnpkg/cli-dist"
    assert PackageManager("yarn", "1.22.22").package == "yarn"
    assert PackageManager("pnpm", "10").is_met_by("10.3.1")
    assert not PackageManager("pnpm", "10.3.0").is_met_by("10.3.1")


def test_install_roots_follow_packages_and_lock_files(tmp_path: Path):
    below = tmp_path / "apps" / "one"
    below.mkdir(parents=True)
    assert find_install_roots(tmp_path, below) == []
    (below / "package.json").write_text('{"dependencies": {}}')
    assert find_install_roots(tmp_path, below) == [below]
    (tmp_path / "package.json").write_text("{}")
    assert find_install_roots(tmp_path, below) == [tmp_path, below]

    (tmp_path / "package.json").write_text('{"workspaces": ["apps/*"]}')
    assert find_install_roots(tmp_path, below) == [tmp_path]
    (tmp_path / "yarn.lock").write_text("")
    assert find_install_roots(tmp_path, below) == [tmp_path]
    (below / "pnpm-lock.yaml").write_text("")
    assert find_install_roots(tmp_path, below) == [below]


@pytest.mark.parametrize(
    ("patterns", "is_member"),
    [
        (["packages/*"], False),
        (["examples/*"], True),
        (["./examples/*/"], True),
        (["**/bot"], True),
        (["examples/**", "!examples/bot"], False),
        ({"packages": ["examples/bot"]}, True),
        ("examples/*", False),
    ],
)
def test_a_package_outside_of_the_workspace_is_installed_by_itself(
    tmp_path: Path, patterns: object, *, is_member: bool
):
    below = tmp_path / "examples" / "bot"
    below.mkdir(parents=True)
    (below / "package.json").write_text('{"dependencies": {"zod": "4"}}')
    (tmp_path / "package.json").write_text(json.dumps({"workspaces": patterns}))
    assert find_install_roots(tmp_path, below) == [tmp_path if is_member else below]


def test_members_of_a_workspace_of_pnpm(tmp_path: Path):
    below = tmp_path / "examples" / "bot"
    below.mkdir(parents=True)
    (below / "package.json").write_text('{"dependencies": {"zod": "4"}}')
    (tmp_path / "package.json").write_text("{}")

    for text, roots in (("packages:\n  - 'packages/*'\n", [below]), ('packages:\n- "examples/*" # all\n', [tmp_path])):
        (tmp_path / "pnpm-workspace.yaml").write_text(text)
        assert find_install_roots(tmp_path, below) == roots


@pytest.mark.parametrize(
    ("engines", "node_version", "words"),
    [
        ({"node": "20", "npm": "10"}, None, "engines may only name node, not node, npm"),
        ("node", None, "engines may only name node"),
        ({"node": "22"}, 20, r"engines\.node requires 22, but node_version is 20"),
        ({"node": "18"}, None, r"engines\.node requires 18; Portside needs Node 20 or newer"),
    ],
)
def test_other_engines_are_refused(tmp_path: Path, engines: object, node_version: int | None, words: str):
    (tmp_path / "package.json").write_text(json.dumps({"engines": engines}))
    with pytest.raises(BuildFailed, match=words):
        read_node_versions(tmp_path, node_version)


@pytest.mark.parametrize(
    ("package", "versions", "preferred"),
    [
        ({}, NodeVersions(), 24),
        ({"engines": {}}, NodeVersions(), 24),
        ({"engines": {"node": "20"}}, NodeVersions(20, 20), 20),
        ({"engines": {"node": "^22.3.0"}}, NodeVersions(22, 22), 22),
        ({"engines": {"node": ">=18"}}, NodeVersions(), 24),
        ({"engines": {"node": ">= 22.12"}}, NodeVersions(oldest=22), 24),
        ({"engines": {"node": "^20 || >=22"}}, NodeVersions(oldest=20), 24),
        ({"engines": {"node": "lts/*"}}, NodeVersions(), 24),
    ],
)
def test_engine_sets_node_version(tmp_path: Path, package: dict[str, object], versions: NodeVersions, preferred: int):
    (tmp_path / "package.json").write_text(json.dumps(package))
    assert read_node_versions(tmp_path, None) == versions
    assert versions.preferred == preferred


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (
            ["[2/4] Fetching", "error Error: http://h/x.tgz: 404", "    at Request (cli.js:1)", "info Visit"],
            "error Error",
        ),
        ([" ERR_PNPM_FETCH_404  GET http://h/x.tgz", "This error happened"], " ERR_PNPM_FETCH_404"),
        (["npm warn old", "npm error code E404", "npm error 404"], "npm error 404"),
        (["npm error code ETARGET", "npm error notarget No matching version"], "npm error notarget No matching"),
        (
            ["Progress: resolved 1", "[ERR_PNPM_NO_MATCHING_VERSION] No matching", "Progress: 2"],
            "[ERR_PNPM_NO_MATCHING",
        ),
        (["npm error code 1"], "npm error code 1"),
        (["one", "src/a.ts(1,2): error TS2304: Cannot find name 'x'."], "src/a.ts(1,2): error"),
        (["dependencies:", "apps/agent postinstall: Error: no network"], "apps/agent postinstall: Error"),
        (['✘ [ERROR] Could not resolve "./a"', "", "    a.ts:1:7"], "✘ [ERROR]"),
        (["one", "two"], "one\ntwo"),
    ],
)
def test_failure_begins_with_first_error(lines: list[str], shown: str):
    found = find_decisive_lines(CommandOutcome(1, lines))
    assert found.startswith(shown)
    assert "cli.js" not in found


async def test_builds_with_yarn_1_install_one_after_the_other(tmp_path: Path):
    written: list[str] = []
    one, two = (NodeTools(tmp_path / name, MaskedOutput(written.append), cache=tmp_path) for name in ("one", "two"))
    order: list[str] = []

    async def install_second() -> None:
        async with two.alone("yarn"):
            order.append("second")

    async def waits() -> bool:
        return "Waiting for another build that installs with yarn" in "".join(written)

    async with one.alone("yarn"):
        second = asyncio.create_task(install_second())
        await eventually(waits)
        order.append("first")

    await second
    assert order == ["first", "second"]


def test_missing_packages_are_noticed(tmp_path: Path):
    below = tmp_path / "apps" / "one"
    below.mkdir(parents=True)
    (below / "package.json").write_text("{}")
    assert find_missing_packages(below) is None
    (below / "package.json").write_text('{"dependencies": {"zod": "4"}}')
    assert find_missing_packages(below) == f"npm i in {below}"
    (tmp_path / "pnpm-lock.yaml").write_text("")

    assert find_missing_packages(below) == f"pnpm i in {tmp_path}"
    (tmp_path / "node_modules").mkdir()
    assert find_missing_packages(below) is None


def test_invalid_package_json_is_named(tmp_path: Path):
    (tmp_path / "package.json").write_text("{")
    with pytest.raises(BuildFailed, match=r"package\.json: "):
        install_command(tmp_path)


def config(folder: Path, **keys: object) -> BuildConfig:
    file = {"graphs": {"a": "./a.py:graph"}, **keys}
    (folder / "langgraph.json").write_text(json.dumps(file))
    return read_config(folder, "langgraph.json")


def test_node_version_is_major_only(tmp_path: Path):
    assert config(tmp_path).node_version is None
    assert config(tmp_path, node_version="20").node_version == 20
    assert config(tmp_path, ui={"agent": "./ui.tsx"}).node_version is None


@pytest.mark.parametrize("graph", ["./src/b.mts:g", {"path": "./src/b.cjs:g"}, "./b.tsx:default", "./b.ts"])
def test_javascript_graphs_are_found(tmp_path: Path, graph: object):
    found = config(tmp_path, graphs={"a": "./a.py:g", "b": graph}, node_version="20", build_command="npm run build")
    assert list(found.javascript_graphs) == ["b"]
    assert found.has_javascript
    assert (found.install_command, found.build_command) == (None, "npm run build")


@pytest.mark.parametrize(
    ("keys", "has_python"),
    [
        ({}, False),
        ({"dependencies": ["."]}, False),
        ({"dependencies": ["httpx"]}, True),
        ({"auth": {"path": "./auth.py:auth"}}, True),
        ({"auth": {"path": "./auth.ts:auth"}, "store": {"index": {"dims": 2}}}, False),
        ({"store": {"index": {"embed": "openai:small"}}}, True),
        ({"graphs": {"a": "./a.ts:g", "b": "./b.py:g"}}, True),
    ],
)
def test_python_is_needed_for_graphs_handlers_and_packages(tmp_path: Path, keys: dict[str, object], has_python: object):
    assert config(tmp_path, **{"graphs": {"a": "./a.ts:g"}, **keys}).has_python is has_python


def test_files_of_components_are_in_the_repository(tmp_path: Path):
    assert config(tmp_path, ui={"agent": "./ui.tsx"}).has_ui
    assert not config(tmp_path, ui={}).has_ui
    with pytest.raises(BuildFailed, match="leads out of the repository"):
        config(tmp_path, ui={"agent": "../ui.tsx"})


def test_ignored_keys_are_listed(tmp_path: Path):
    found = config(tmp_path, dockerfile_lines=["RUN x"], base_image="y", keep_pkg_tools=False)
    assert found.skipped == ["base_image", "dockerfile_lines"]
    assert config(tmp_path, dockerfile_lines=[], pip_installer="").skipped == []


def test_uv_source_excludes_dependencies(tmp_path: Path):
    (tmp_path / "uv.lock").write_text("")
    (tmp_path / "pyproject.toml").write_text("")
    found = config(tmp_path, source={"kind": "uv", "package": "one"}).uv
    assert found is not None
    assert (found.root, found.package) == (tmp_path, "one")


@pytest.mark.parametrize(
    ("pyproject", "specifier"),
    [
        ("", ""),
        ('[project]\nrequires-python = ">=3.10, <4"\n', "<4,>=3.10"),
        ('[project]\nrequires-python = "three"\n', ""),
        ('[tool.poetry.dependencies]\npython = "^3.11"\n', "<4,>=3.11"),
        ('[tool.poetry.dependencies]\npython = "^3.11.4"\n', "<4,>=3.11.4"),
        ('[tool.poetry.dependencies]\npython = "~3.12"\n', "<3.13,>=3.12"),
        ('[tool.poetry.dependencies]\npython = ">=3.11,<3.13"\n', "<3.13,>=3.11"),
        ('[tool.poetry.dependencies]\npython = {version = "^3.11"}\n', ""),
    ],
)
def test_required_python_reads_pyproject(tmp_path: Path, pyproject: str, specifier: str):
    (tmp_path / "pyproject.toml").write_text(pyproject)
    assert read_required_python(tmp_path) == specifier


def test_suitable_versions_lists_allowed_minors():
    assert list_suitable_versions(">=3.9")[:2] == ["3.11", "3.12"]
    assert list_suitable_versions(">=3.12.4,<3.14") == ["3.12", "3.13"]
    assert list_suitable_versions("~=3.11.0") == ["3.11"]
    assert list_suitable_versions("<3.11") == []


@pytest.mark.parametrize(
    ("pyproject", "kind"),
    [
        (None, (False, False)),
        ("[tool.ruff]\n", (False, False)),
        ('[project]\nname = "a"\nversion = "1"\n', (False, True)),
        ('[project]\nname = "a"\ndynamic = ["version"]\n', (True, False)),
        ('[project]\nname = "a"\n[build-system]\nrequires = []\n', (True, False)),
        ('[project]\nname = "a"\n[tool.setuptools]\npackages = ["a"]\n', (True, False)),
        ('[tool.poetry]\nname = "a"\n', (True, False)),
    ],
)
def test_projects_and_virtual_projects_are_distinguished(
    tmp_path: Path, pyproject: str | None, kind: tuple[bool, bool]
):
    if pyproject is not None:
        (tmp_path / "pyproject.toml").write_text(pyproject)

    assert (is_project(tmp_path), is_virtual(tmp_path)) == kind
    (tmp_path / "setup.cfg").write_text("")
    assert is_project(tmp_path) == bool(pyproject), "it is no project by itself"
    (tmp_path / "setup.py").write_text("")
    assert (is_project(tmp_path), is_virtual(tmp_path)) == (True, False)


def test_pip_config_becomes_uv_variables(tmp_path: Path):
    path = tmp_path / "pip.conf"
    path.write_text(
        "[global]\nindex-url = https://user:pw@index/simple\ntimeout = 60\n"
        "[install]\nextra_index_url =\n    https://one/simple\n    https://two/simple\nfind-links = ./a ./b\n"
        "[list]\nformat = x\n[download]\nno-index = true\n"
    )

    found = read_pip_config(path, "pip.conf")
    assert found.variables == {
        "UV_DEFAULT_INDEX": "https://user:pw@index/simple",
        "UV_INDEX": "https://one/simple https://two/simple",
        "UV_FIND_LINKS": "./a,./b",
    }

    assert found.skipped == ["global.timeout", "list.format", "download.no-index"]
    path.write_text("no section")
    with pytest.raises(BuildFailed, match=r"'pip\.conf' is not a valid pip configuration"):
        read_pip_config(path, "pip.conf")


@pytest.mark.parametrize(
    ("config", "default", "secrets", "layout", "words"),
    [
        ({}, "split", {}, "split", "from the platform's environment"),
        ({"auth": {"path": "./a.py:auth"}, "http": {"disable_mcp": True}}, "split", {}, "split", ""),
        ({}, "split", {"EXECUTORS": "4"}, "split", ""),
        ({}, "split", {"EXECUTORS": ""}, "split", ""),
        ({}, "split", {"EXECUTORS": " 00 "}, "combined", "EXECUTORS is 0"),
        ({}, "combined", {}, "combined", "setting DEPLOYMENT_LAYOUT"),
        ({"http": {"app": "./a.py:app"}}, "split", {}, "combined", "may share objects"),
        ({"http": {"app": "./a.py:app"}}, "split", {"EXECUTORS": "1"}, "split", ""),
    ],
)
def test_layout_of_a_build(
    tmp_path: Path, config: dict[str, object], default: Layout, secrets: dict[str, str], layout: Layout, words: str
):
    (tmp_path / "langgraph.json").write_text(json.dumps({"graphs": {"agent": "./agent.py:graph"}, **config}))
    chosen, reason = choose_layout(read_config(tmp_path, "langgraph.json"), default, secrets)
    assert (chosen, words in reason) == (layout, True), reason


def test_is_behind_detects_missing_migrations(tmp_path: Path):
    ours = Path(portside.__file__).parent / "agent"
    theirs = tmp_path / "lib" / "python3.11" / "site-packages" / "portside" / "agent"
    for folder in ("migrations", "functions"):
        (theirs / folder).mkdir(parents=True)

    names = sorted(file.name for file in (ours / "migrations").glob("*.sql"))
    revision = theirs / "functions" / "revision.txt"
    shutil.copy(ours / "functions" / "revision.txt", revision)

    for name in names[:-1]:
        (theirs / "migrations" / name).touch()

    assert is_behind(tmp_path)
    (theirs / "migrations" / names[-1]).touch()
    assert not is_behind(tmp_path)
    (theirs / "migrations" / "9999_of_a_later_version.sql").touch()
    assert not is_behind(tmp_path)
    revision.write_text("0 an older one")
    assert is_behind(tmp_path)

    revision.unlink()
    assert is_behind(tmp_path)


async def test_earlier_executor_is_restored_after_an_update_that_failed_half_way(tmp_path: Path):
    packages = tmp_path / "build" / "venv" / "lib" / "python3.11" / "site-packages"
    earlier = tmp_path / "build" / "earlier-executor"
    for folder in (packages, earlier):
        (folder / "portside").mkdir(parents=True)

    (earlier / "portside" / "__init__.py").write_text("earlier")
    (earlier / "portside-1.dist-info").mkdir()
    (packages / "portside" / "half_a_package.py").touch()
    (earlier / "kept-for").write_text("2")

    files = ExecutorFiles(tmp_path / "build", tmp_path)
    # Another attempt to update keeps nothing of what the first one has left.
    files._keep("2")
    await files.restore_previous()
    assert sorted(found.name for found in packages.iterdir()) == ["portside", "portside-1.dist-info"]
    assert [found.read_text() for found in (packages / "portside").iterdir()] == ["earlier"]


@pytest.mark.skipif(not (node._RUNTIME / "package.json").is_file(), reason="the JavaScript executor is not built")
async def test_earlier_javascript_executor_is_restored(tmp_path: Path):
    build = tmp_path / "build"
    kept = tmp_path / node.RUNTIMES
    runtime = node.runtime_folder(build)
    runtime.mkdir(parents=True)
    (runtime / "main.mjs").write_text("earlier")

    # As if it was installed from the registry before.
    shutil.copytree(node._RUNTIME, kept / node._hash_folder(node._RUNTIME))
    files = ExecutorFiles(build, tmp_path)
    await files.update()
    assert await node.is_runtime_current(build)
    await files.restore_previous()
    assert [(found.name, found.read_text()) for found in runtime.iterdir()] == [("main.mjs", "earlier")]


def test_explain_names_at_most_three_packages():
    asking = [f"library-{letter}" for letter in "abcdef"]
    pins = [f"{name}==1.0    # via mybot" for name in asking]
    core = f"langchain-core==0.2.43    # via {', '.join(asking)}"
    floor = "the agent server needs 0.3.67 or newer"
    reason = explain_conflict(read_pins([core, *pins]), ["langchain-core>=0.3.67"], {})
    assert reason == f"library-a, library-b, library-c and 3 more give langchain-core 0.2.43; {floor}"
    reason = explain_conflict(
        read_pins(["langchain-core==0.2.43  # via library-a, mybot"]), ["langchain-core>=0.3.67"], {}
    )
    assert reason == f"library-a and mybot give langchain-core 0.2.43; {floor}"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            [
                "\N{MULTIPLICATION SIGN} No solution found when resolving dependencies:",
                "  ╰─▶ Because langgrap was not found in the package",
                "      registry and you require langgrap>=1, we can conclude",
            ],
            "no package index has langgrap (requirements.txt names it); correct its name",
        ),
        (
            ["  cause: Because only orjson<=3.11 is available and you require orjson>=99, we can conclude"],
            "no package index has the version of orjson that is wanted (langgraph.json names it), only orjson<=3.11",
        ),
        (
            ["Because there is no version of orjson==0.0.1 and you require orjson==0.0.1, we can conclude"],
            "no package index has orjson==0.0.1 (langgraph.json names it); name a version that exists",
        ),
        (["Because there is no version of other==0.0.1 and orjson depends on other"], None),
        (["error: Failed to build `thing`"], None),
    ],
)
def test_requirements_that_no_index_has_are_named_with_their_file(tmp_path: Path, lines: list[str], reason: str | None):
    (tmp_path / "langgraph.json").write_text('{"dependencies": ["orjson"]}')
    (tmp_path / "requirements.txt").write_text("langgrap>=1\n")
    config = BuildConfig(path=tmp_path / "langgraph.json", requirements=[tmp_path / "requirements.txt"])
    assert find_missing_requirement(lines, config) == reason


def test_only_what_lock_files_name_is_installed_without_asking_an_index():
    bot, lib = (Path("/source", name) for name in ("bot", "lib"))
    locked = [bot, lib]
    path = Path("/source/langgraph.json")

    assert has_only_locked(BuildConfig(path=path, projects=[bot, lib]), locked)
    assert has_only_locked(BuildConfig(path=path, projects=[bot], requirements=[lib / "pyproject.toml"]), locked)

    assert not has_only_locked(BuildConfig(path=path, projects=[bot, lib]), [bot])
    assert not has_only_locked(BuildConfig(path=path, projects=[bot], packages=["httpx"]), locked)
    assert not has_only_locked(BuildConfig(path=path, projects=[bot], requirements=[bot / "requirements.txt"]), locked)


@dataclasses.dataclass(frozen=True)
class NotedEnvironment(Environment):
    """Runs no uv, and notes what it would run. `installed` has the interpreters of the machine by their versions."""

    installed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ran: list[tuple[tuple[str, ...], Path | None]] = dataclasses.field(default_factory=list)
    paths: list[str] = dataclasses.field(default_factory=list)

    async def _run_uv(
        self,
        config: BuildConfig | None,
        *arguments: str,
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
        **_how: Any,
    ) -> CommandOutcome:
        self.ran.append((arguments, cwd))
        self.paths.append((variables or {}).get("PATH", ""))
        listed = arguments[:2] == ("python", "list")
        return CommandOutcome(
            0, [f"cpython-{version}-linux-x86_64-gnu    {path}" for version, path in self.installed.items() if listed]
        )


async def test_projects_are_installed_in_place_beside_requirements_and_packages(tmp_path: Path):
    """In place, so that files beside their code are there, even if a wheel would lack them."""
    app, lib = tmp_path / "apps" / "one", tmp_path / "libs" / "shared"
    requirements = app / "requirements.txt"
    config = BuildConfig(
        path=app / "langgraph.json", projects=[app, lib], requirements=[requirements], packages=["sniffio", "idna"]
    )
    environment = NotedEnvironment(tmp_path, MaskedOutput(print))
    inputs = await environment._list_inputs(config)
    await environment._install(config, inputs, tmp_path / "portside.whl")

    packages = tmp_path / "packages.txt"
    assert packages.read_text() == "sniffio\nidna\n"
    [(arguments, cwd)] = environment.ran
    assert cwd == app, "relative paths in requirements count from the configuration file"
    assert arguments[4:] == (
        *("-r", str(requirements), "-r", str(packages)),
        *("--editable", str(app), "--editable", str(lib)),
        *("--", str(tmp_path / "portside.whl")),
    )


@pytest.mark.parametrize(("version", "is_other"), [("3.99.7", False), ("3.99.39", True), ("3.99", False)])
async def test_another_patch_of_the_same_python_will_do(tmp_path: Path, version: str, *, is_other: bool):
    lines: list[str] = []
    environment = NotedEnvironment(tmp_path, MaskedOutput(lines.append), installed={"3.99.7": "/opt/python3.99"})
    config = BuildConfig(path=tmp_path / "langgraph.json", python_version=version)
    assert await environment._find_interpreter(config) == "/opt/python3.99"

    # It was asked for first.
    downloads = [arguments for arguments, _cwd in environment.ran if arguments[:2] == ("python", "install")]
    assert downloads == ([("python", "install", version)] if is_other else [])
    assert any("another patch of Python 3.99 is used" in line for line in lines) == is_other


async def test_interpreters_that_pyenv_keeps_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept = tmp_path / "pyenv" / "versions" / "3.99.7" / "bin"
    kept.mkdir(parents=True)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    environment = NotedEnvironment(tmp_path, MaskedOutput(print))
    await environment._list_installed("==3.99.*")
    assert environment.paths == [f"{os.environ['PATH']}{os.pathsep}{kept}"]
