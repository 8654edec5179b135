"""Reading the graph configuration file of a build, and refusing an invalid one."""

import json
import re
from pathlib import Path

import pytest

from portside.dataplane.builds.config import read_config
from portside.dataplane.failures import BuildFailed

GRAPHS = {"agent": "./agent.py:graph"}


def repository(folder: Path, **config: object) -> Path:
    (folder / "graph.json").write_text(json.dumps({"graphs": GRAPHS, **config}))
    return folder


BUILT = '[project]\nname = "x"\nversion = "1"\n[build-system]\nrequires = ["hatchling"]\n'
LISTED = '[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["httpx"]\n'


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_dependencies_are_sorted_by_kind(tmp_path: Path):
    write(
        tmp_path,
        {
            "project/pyproject.toml": BUILT,
            "old/setup.py": "",
            "listed/pyproject.toml": LISTED,
            "plain/requirements.txt": "httpx\n",
            "bare/x.py": "",
            "tools/pyproject.toml": "[tool.ruff]\n",
            "tools/requirements.txt": "",
            "requirements.txt": "",
            "requirements-dev.txt": "",
            "ui/package.json": "{}",
        },
    )

    dependencies = [
        "./project",
        "./old",
        "./listed",
        "./plain",
        "./bare",
        "./tools",
        "orjson>=3",
        "requirements-dev.txt",
        "./project/pyproject.toml",
        "./ui/package.json",
        "",
        "langchain_openai",
    ]

    config = read_config(repository(tmp_path, dependencies=dependencies), "graph.json")
    assert config.packages == ["orjson>=3", "langchain_openai"]
    assert config.projects == [tmp_path / name for name in ("project", "old", "project")]

    assert [str(path.relative_to(tmp_path)) for path in config.requirements] == [
        "listed/pyproject.toml",
        "plain/requirements.txt",
        "tools/requirements.txt",
        "requirements-dev.txt",
        "requirements.txt",
    ]

    assert (config.python_version, config.requires_python) == (None, ">=3.11")


def test_python_version_comes_from_file_within_requires_python(tmp_path: Path):
    write(tmp_path, {"a/pyproject.toml": BUILT.replace("version", 'requires-python = ">=3.12"\nversion')})
    write(tmp_path, {"b/pyproject.toml": LISTED})
    config = read_config(repository(tmp_path, dependencies=["./a", "./b"], python_version="3.12-slim"), "graph.json")
    assert (config.python_version, config.requires_python) == ("3.12", ">=3.12,>=3.11")
    config = read_config(repository(tmp_path, dependencies=["./a"], python_version="3.12.4-slim"), "graph.json")
    assert config.python_version == "3.12.4"

    words = r"python_version 3\.11 is outside requires-python '>=3\.12' of a/pyproject\.toml"
    with pytest.raises(BuildFailed, match=words):
        read_config(repository(tmp_path, dependencies=["./a"], python_version="3.11"), "graph.json")

    write(tmp_path, {"b/pyproject.toml": LISTED.replace(">=3.11", "<3.11")})
    with pytest.raises(BuildFailed, match=r"'<3\.11' of b/pyproject\.toml allows no .* from 3\.11 to 3\.14$"):
        read_config(repository(tmp_path, dependencies=["./b"]), "graph.json")


def test_folders_are_relative_to_config_file(tmp_path: Path):
    below = tmp_path / "apps" / "one"
    below.mkdir(parents=True)
    (tmp_path / "apps" / "shared").mkdir()
    (tmp_path / "apps" / "shared" / "setup.py").write_text("")
    repository(below, dependencies=["../shared"])

    config = read_config(tmp_path, "apps/one/graph.json")
    assert config.projects == [tmp_path / "apps" / "shared"]
    assert config.path == below / "graph.json"


def test_paths_may_be_those_from_the_top_of_the_repository(tmp_path: Path):
    write(tmp_path, {"app/agent.ts": "", "app/x.py": "", "requirements.txt": "", "app/lib/pyproject.toml": BUILT})
    repository(tmp_path / "app", graphs={"a": "./app/agent.ts:g"}, dependencies=["./app/lib", "./requirements.txt"])
    config = read_config(tmp_path, "app/graph.json")
    assert config.javascript_graphs == {"a": "./agent.ts:g"}
    assert config.projects == [tmp_path / "app" / "lib"]
    assert config.requirements == [tmp_path / "requirements.txt"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"graphs": {}}, "must name at least one graph"),
        ({"graphs": {"a": 1}}, "'a'"),
        ({"node_version": "18"}, "20 or newer"),
        ({"node_version": "20.1"}, "major version alone"),
        ({"dependencies": "."}, "$.dependencies"),
        ({"dependencies": ["--index-url=http://elsewhere"]}, "begins with a dash or has several lines"),
        ({"dependencies": ["orjson\n--index-url=http://elsewhere"]}, "begins with a dash or has several lines"),
        ({"dependencies": ["./nowhere"]}, "'./nowhere'"),
        ({"dependencies": [".."]}, "leads out"),
        ({"python_version": "3.9"}, "3.11 or newer"),
        ({"python_version": "3.12.1.2"}, "major.minor or with a patch"),
        ({"source": {"kind": "pip"}}, "the only supported kind is 'uv'"),
        ({"source": {"kind": "uv"}}, "no pyproject.toml with a uv.lock"),
        ({"source": {"kind": "uv"}, "dependencies": ["orjson"]}, "remove 'dependencies'"),
        ({"source": {"kind": "uv", "root": ".."}}, "leads out"),
        ({"source": {"kind": "uv", "package": "--all"}}, "package"),
        ({"pip_config_file": "../pip.conf"}, "leads out"),
        ({"pip_config_file": "pip.conf"}, "no such file"),
    ],
)
def test_invalid_config_is_refused_with_its_name(tmp_path: Path, config: dict[str, object], words: str):
    with pytest.raises(BuildFailed, match=re.escape(words)):
        read_config(repository(tmp_path, **config), "graph.json")


def test_missing_config_is_named(tmp_path: Path):
    with pytest.raises(BuildFailed, match=r"apps/langgraph\.json: the repository has no such file"):
        read_config(tmp_path, "apps/langgraph.json")


def test_missing_config_names_those_that_are_there(tmp_path: Path):
    write(tmp_path, {"apps/one/graph.json": "{}"})
    (tmp_path / "folder").mkdir()
    with pytest.raises(BuildFailed, match=r"it has apps/one/graph\.json: name one as the configuration file"):
        read_config(tmp_path, "langgraph.json")

    with pytest.raises(BuildFailed, match="folder is a folder; name the configuration file in it"):
        read_config(tmp_path, "folder")


def test_misspelt_keys_are_kept_for_the_log(tmp_path: Path):
    assert read_config(repository(tmp_path, dependancies=["."]), "graph.json").misspelt == {
        "dependancies": "dependencies"
    }

    with pytest.raises(BuildFailed, match='there is a key "graph", which must be "graphs"'):
        read_config(repository(tmp_path, graphs=None, graph={"a": "a.py:g"}), "graph.json")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path):
    (tmp_path / "graph.json").write_text(" " * 1_000_001)
    with pytest.raises(BuildFailed, match=r"graph\.json: larger than 1000000 bytes"):
        read_config(tmp_path, "graph.json")


def test_a_lock_file_is_found_in_the_repository_alone(tmp_path: Path):
    inside = tmp_path / "inside"
    write(inside, {"project/pyproject.toml": BUILT, "linked/pyproject.toml": BUILT, "project/uv.lock": ""})
    (tmp_path / "uv.lock").write_text("")
    (inside / "linked" / "uv.lock").symlink_to(tmp_path / "uv.lock")

    config = read_config(repository(inside, dependencies=["./project", "./linked"]), "graph.json")
    assert [lock.name for lock in config.found_locks] == ["project/uv.lock"]


def test_invalid_json_names_the_file(tmp_path: Path):
    (tmp_path / "graph.json").write_text('{"graphs": ')
    with pytest.raises(BuildFailed, match=r"graph\.json is not valid JSON: .*line 1"):
        read_config(tmp_path, "graph.json")


@pytest.mark.parametrize("path", ["../graph.json", "/etc/passwd", "link.json", "folder/graph.json"])
def test_path_outside_repository_is_refused(tmp_path: Path, path: str):
    inside = tmp_path / "inside"
    outside = tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    repository(outside)
    repository(tmp_path)
    (inside / "link.json").symlink_to(outside / "graph.json")

    (inside / "folder").symlink_to(outside)
    with pytest.raises(BuildFailed, match="leads out of the repository"):
        read_config(inside, path)
