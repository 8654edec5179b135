"""Parts of a build that need no program: masking, install commands, addresses, pip configuration, versions."""

import json
import shutil
from pathlib import Path

import pytest

import portside
from portside.dataplane.builds.config import (
    BuildConfig,
    is_project,
    is_virtual,
    read_config,
    read_pip_config,
    required_python,
    suitable_versions,
)
from portside.dataplane.builds.environment import explain, read_pins
from portside.dataplane.builds.javascript import check_engines, install_command, install_root
from portside.dataplane.builds.sources import address_of, is_local
from portside.dataplane.builds.wheel import is_behind
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput
from portside.listener_api import Secret


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
    found, given = address_of(url, Secret("own", "credential"))
    assert found == address
    assert (None if given is None else (given.name, given.value)) == secret


def test_is_local_recognises_local_folders():
    assert all(map(is_local, ["/a", "../a", "file:///a", "./a:b"]))
    assert not any(map(is_local, ["git@host:a", "host:a", "https://h/a", "git://h/a"]))


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (["yarn.lock", "pnpm-lock.yaml", "package-lock.json", "bun.lockb"], "yarn install --frozen-lockfile"),
        (["pnpm-lock.yaml", "package-lock.json", "bun.lockb"], "pnpm i --frozen-lockfile"),
        (["package-lock.json", "bun.lockb"], "npm ci"),
        (["bun.lockb"], "bun i"),
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
        ({"packageManager": "yarn@4.1.0"}, "yarn install"),
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


def test_install_root_prefers_source_root(tmp_path: Path):
    below = tmp_path / "apps" / "one"
    below.mkdir(parents=True)
    assert install_root(tmp_path, below) == tmp_path
    (below / "package.json").write_text("{}")
    assert install_root(tmp_path, below) == below
    (tmp_path / "yarn.lock").write_text("")
    assert install_root(tmp_path, below) == tmp_path


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        ({"node": "20", "npm": "10"}, "engines may only name node, not node, npm"),
        ("node", "engines may only name node"),
        ({"node": "22"}, r"engines\.node requires 22, but the listener's machine has Node 20"),
    ],
)
def test_other_engines_are_refused(tmp_path: Path, engines: object, words: str):
    (tmp_path / "package.json").write_text(json.dumps({"engines": engines}))
    with pytest.raises(BuildFailed, match=words):
        check_engines(tmp_path, 20)


@pytest.mark.parametrize("package", [{}, {"engines": {}}, {"engines": {"node": "20"}}, {"engines": {"node": ">=18"}}])
def test_matching_engine_is_accepted(tmp_path: Path, package: dict[str, object]):
    (tmp_path / "package.json").write_text(json.dumps(package))
    try:
        check_engines(tmp_path, 20)
    except BuildFailed as exc:
        pytest.fail(str(exc))


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


@pytest.mark.parametrize("graph", ["./src/b.mts:g", {"path": "./src/b.js:g"}, "./b.tsx:default"])
def test_javascript_graph_is_refused(tmp_path: Path, graph: object):
    with pytest.raises(BuildFailed, match=r"graph 'b' is JavaScript \(\./.*\), and Portside runs Python graphs"):
        config(tmp_path, graphs={"a": "./a.py:g", "b": graph}, node_version="20")


def test_ignored_keys_are_listed(tmp_path: Path):
    found = config(tmp_path, dockerfile_lines=["RUN x"], base_image="y", keep_pkg_tools=False, ui={"a": "./a.tsx"})
    assert found.skipped == ["base_image", "dockerfile_lines", "ui"]
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
    assert required_python(tmp_path) == specifier


def test_suitable_versions_lists_allowed_minors():
    assert suitable_versions(">=3.9")[:2] == ["3.11", "3.12"]
    assert suitable_versions(">=3.12.4,<3.14") == ["3.12", "3.13"]
    assert suitable_versions("~=3.11.0") == ["3.11"]
    assert suitable_versions("<3.11") == []


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
        "[list]\nformat = x\n"
    )
    found = read_pip_config(path, "pip.conf")
    assert found.variables == {
        "UV_DEFAULT_INDEX": "https://user:pw@index/simple",
        "UV_INDEX": "https://one/simple https://two/simple",
        "UV_FIND_LINKS": "./a,./b",
    }
    assert found.skipped == ["global.timeout", "list.format"]
    path.write_text("no section")
    with pytest.raises(BuildFailed, match=r"'pip\.conf' is not a valid pip configuration"):
        read_pip_config(path, "pip.conf")


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


def test_explain_names_at_most_three_packages():
    asking = [f"library-{letter}" for letter in "abcdef"]
    pins = [f"{name}==1.0    # via mybot" for name in asking]
    core = f"langchain-core==0.2.43    # via {', '.join(asking)}"
    floor = "the agent server needs 0.3.67 or newer"
    reason = explain(read_pins([core, *pins]), ["langchain-core>=0.3.67"], {})
    assert reason == f"library-a, library-b, library-c and 3 more give langchain-core 0.2.43; {floor}"
    reason = explain(read_pins(["langchain-core==0.2.43  # via library-a, mybot"]), ["langchain-core>=0.3.67"], {})
    assert reason == f"library-a and mybot give langchain-core 0.2.43; {floor}"
