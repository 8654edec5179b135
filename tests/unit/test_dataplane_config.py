"""What a build reads from a configuration file, and every way in which it is refused."""

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


def test_dependencies_are_sorted_by_kind(tmp_path: Path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pyproject.toml").write_text("")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "requirements.txt").write_text("httpx\n")
    (tmp_path / "bare").mkdir()
    config = read_config(
        repository(tmp_path, dependencies=["./project", "./plain", "./bare", "orjson>=3"]), "graph.json"
    )
    assert config.packages == ["orjson>=3"]
    assert config.projects == [tmp_path / "project"]
    assert config.requirements == [tmp_path / "plain" / "requirements.txt"]
    assert config.python_version is None


def test_folders_are_relative_to_the_file(tmp_path: Path):
    below = tmp_path / "apps" / "one"
    below.mkdir(parents=True)
    (tmp_path / "apps" / "shared").mkdir()
    (tmp_path / "apps" / "shared" / "setup.py").write_text("")
    repository(below, dependencies=["../shared"])
    config = read_config(tmp_path, "apps/one/graph.json")
    assert config.projects == [tmp_path / "apps" / "shared"]
    assert config.path == below / "graph.json"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"graphs": {}}, "no graphs"),
        ({"graphs": {"a": 1}}, "'a'"),
        ({"node_version": "18"}, "20 or newer"),
        ({"node_version": "20.1"}, "major version alone"),
        ({"dependencies": "."}, "$.dependencies"),
        ({"dependencies": ["--index-url=http://elsewhere"]}, "is not a dependency"),
        ({"dependencies": ["orjson\n--index-url=http://elsewhere"]}, "is not a dependency"),
        ({"dependencies": ["./nowhere"]}, "'./nowhere'"),
        ({"dependencies": [".."]}, "leads out"),
        ({"python_version": "3.9"}, "3.11 or newer"),
        ({"python_version": "3.12.1"}, "major.minor"),
        ({"source": {"kind": "pip"}}, "the one kind is 'uv'"),
        ({"source": {"kind": "uv"}}, "no pyproject.toml with a uv.lock"),
        ({"source": {"kind": "uv"}, "dependencies": ["orjson"]}, "remove 'dependencies'"),
        ({"source": {"kind": "uv", "root": ".."}}, "leads out"),
        ({"source": {"kind": "uv", "package": "--all"}}, "package"),
        ({"pip_config_file": "../pip.conf"}, "leads out"),
        ({"pip_config_file": "pip.conf"}, "no such file"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path: Path, config: dict[str, object], words: str):
    with pytest.raises(BuildFailed, match=re.escape(words)):
        read_config(repository(tmp_path, **config), "graph.json")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(BuildFailed, match=r"apps/langgraph\.json: there is no such file"):
        read_config(tmp_path, "apps/langgraph.json")


def test_broken_json_names_the_file(tmp_path: Path):
    (tmp_path / "graph.json").write_text('{"graphs": ')
    with pytest.raises(BuildFailed, match=r"graph\.json: not valid JSON"):
        read_config(tmp_path, "graph.json")


@pytest.mark.parametrize("path", ["../graph.json", "/etc/passwd", "link.json", "folder/graph.json"])
def test_no_path_leads_out_of_the_repository(tmp_path: Path, path: str):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    repository(outside)
    repository(tmp_path)
    (inside / "link.json").symlink_to(outside / "graph.json")
    (inside / "folder").symlink_to(outside)
    with pytest.raises(BuildFailed, match="leads out of the repository"):
        read_config(inside, path)
