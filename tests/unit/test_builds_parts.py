"""The parts of a build that decide: what is masked, which command installs, what an address is, what pip is told."""

import json
from pathlib import Path

import pytest

import portside
from portside.dataplane.builds.config import BuildConfig, read_config
from portside.dataplane.builds.git_command import address_of, is_local
from portside.dataplane.builds.javascript import check_engines, install_command, install_root
from portside.dataplane.builds.output import Output
from portside.dataplane.builds.pip_config import read_pip_config
from portside.dataplane.builds.wheel import is_behind
from portside.dataplane.failures import BuildFailed
from portside.dataplane.types import Secret


def test_values_do_not_show_in_any_form():
    lines: list[str] = []
    output = Output(lines.append, ["s3cret/val ue", "short", "true", "first line\nsecond line", "s3cret"])
    assert output.say("a s3cret/val ue and true") == "a *** and true"
    output.say("http://h/?q=s3cret%2Fval%20ue")
    output.say("https://user:pw@host/x")
    output.say("first line, second line, s3cret")
    assert lines == ["a *** and true", "http://h/?q=***", "https://***@host/x", "***, ***, ***"]
    assert output.silent().say("s3cret/val ue") == "***"
    assert len(lines) == 4


def test_a_flood_of_lines_is_cut_off_and_said_so():
    lines: list[str] = []
    output = Output(lines.append, max_lines=3)
    for number in range(100):
        output.say(f"line {number}")
    assert lines == ["line 0", "line 1", "line 2", "The build has written 3 lines; what follows is left out"]


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
def test_user_and_password_leave_the_address(url: str, address: str, secret: tuple[str, str] | None):
    found, given = address_of(url, Secret("own", "credential"))
    assert found == address
    assert (None if given is None else (given.name, given.value)) == secret


def test_folders_of_this_machine_are_known():
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
def test_the_lock_file_says_what_installs(tmp_path: Path, files: list[str], command: str):
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
def test_without_a_lock_file_the_package_does(tmp_path: Path, package: dict[str, object], command: str):
    (tmp_path / "package.json").write_text(json.dumps(package))
    assert install_command(tmp_path) == command


def test_installing_is_done_at_the_top_unless_only_the_folder_below_has_a_package(tmp_path: Path):
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
        ({"node": "22"}, r"engines\.node asks for 22, and Node 20"),
    ],
)
def test_other_engines_are_refused(tmp_path: Path, engines: object, words: str):
    (tmp_path / "package.json").write_text(json.dumps({"engines": engines}))
    with pytest.raises(BuildFailed, match=words):
        check_engines(tmp_path, 20)


@pytest.mark.parametrize("package", [{}, {"engines": {}}, {"engines": {"node": "20"}}, {"engines": {"node": ">=18"}}])
def test_an_engine_that_fits_is_taken(tmp_path: Path, package: dict[str, object]):
    (tmp_path / "package.json").write_text(json.dumps(package))
    check_engines(tmp_path, 20)


def test_a_package_that_cannot_be_read_is_named(tmp_path: Path):
    (tmp_path / "package.json").write_text("{")
    with pytest.raises(BuildFailed, match=r"package\.json: "):
        install_command(tmp_path)


def config(folder: Path, **keys: object) -> BuildConfig:
    file = {"graphs": {"a": "./a.py:graph"}, **keys}
    (folder / "langgraph.json").write_text(json.dumps(file))
    return read_config(folder, "langgraph.json")


def test_javascript_is_noticed(tmp_path: Path):
    assert not config(tmp_path).wants_node
    assert config(tmp_path, node_version="20").node_version == 20
    assert config(tmp_path, node_version=22).wants_node
    assert config(tmp_path, ui={"agent": "./ui.tsx"}).wants_node
    assert config(tmp_path, graphs={"a": "./a.py:g", "b": {"path": "./src/b.mts:g"}}).wants_node


def test_what_is_for_images_is_named(tmp_path: Path):
    found = config(tmp_path, dockerfile_lines=["RUN x"], base_image="y", keep_pkg_tools=False, image_distro="wolfi")
    assert found.skipped == ["base_image", "dockerfile_lines", "image_distro"]


def test_a_locked_project_needs_no_dependencies(tmp_path: Path):
    (tmp_path / "uv.lock").write_text("")
    (tmp_path / "pyproject.toml").write_text("")
    found = config(tmp_path, source={"kind": "uv", "package": "one"}).uv
    assert found is not None
    assert (found.root, found.package) == (tmp_path, "one")


def test_uv_is_told_of_the_indexes(tmp_path: Path):
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
    with pytest.raises(BuildFailed, match=r"'pip\.conf' cannot be read"):
        read_pip_config(path, "pip.conf")


def test_a_build_whose_server_would_refuse_a_newer_database_is_known(tmp_path: Path):
    ours = sorted((Path(portside.__file__).parent / "agent" / "migrations").glob("*.sql"))
    theirs = tmp_path / "lib" / "python3.11" / "site-packages" / "portside" / "agent" / "migrations"
    theirs.mkdir(parents=True)
    for file in ours[:-1]:
        (theirs / file.name).touch()
    assert is_behind(tmp_path)
    (theirs / ours[-1].name).touch()
    assert not is_behind(tmp_path)
    (theirs / "9999_of_a_later_version.sql").touch()
    assert not is_behind(tmp_path)
