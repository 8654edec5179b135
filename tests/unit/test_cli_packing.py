"""`portside deploy` packs the project and its local dependencies, but no secrets and no ignored files."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from portside.cli import deploy
from portside.cli.deploy import Packed, pack, read_project
from portside.kernel.errors import UserMistake

CONFIG = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write(tmp_path / "agent", {"langgraph.json": json.dumps(CONFIG), "agent.py": "graph = 1\n"})


def packed(folder: Path, config: str = "langgraph.json") -> tuple[dict[str, bytes], Packed]:
    """Pack a folder and return what is in the archive."""
    file = io.BytesIO()
    summary = pack(read_project(folder, config), file)
    assert summary.size == len(file.getvalue())
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        members = archive.getmembers()
        assert all(member.isreg() and (member.uid, member.mtime, member.uname) == (0, 0, "") for member in members)
        found = {member.name: archive.extractfile(member).read() for member in members}
    assert len(found) == len(members) == summary.files
    return found, summary


def test_caches_and_ignored_files_are_not_packed(project: Path) -> None:
    write(project, {
        ".gitignore": "*.log\nout/\n!keep.log\n/top.txt\n", ".dockerignore": "# a comment\ndata\n*.md\n!README.md\n",
        "a.log": "", "keep.log": "", "out/x": "", "top.txt": "", "sub/top.txt": "", "sub/.gitignore": "mine\n!b.log\n",
        "sub/mine": "", "sub/b.log": "", "data/x": "", "sub/data/x": "", "README.md": "", "NOTES.md": "",
        ".git/config": "", ".venv/x": "", "node_modules/x": "", "sub/__pycache__/x.pyc": "", "x.pyc": "",
    })  # fmt: skip
    assert set(packed(project)[0]) == {
        "langgraph.json", "agent.py", ".gitignore", ".dockerignore", "keep.log", "sub/top.txt", "sub/.gitignore",
        "sub/b.log", "sub/data/x", "README.md",
    }  # fmt: skip


def test_gitignore_of_the_enclosing_repository_applies(project: Path) -> None:
    write(project.parent, {".git/HEAD": "", ".gitignore": "*.secret\n"})
    write(project, {"a.secret": ""})
    assert set(packed(project)[0]) == {"langgraph.json", "agent.py"}


def test_links_to_outside_are_left_out(project: Path, tmp_path: Path) -> None:
    write(tmp_path, {"outside.txt": "private"})
    write(project, {"real.txt": "mine", "folder/x": ""})
    (project / "inside.txt").symlink_to("real.txt")
    (project / "outside.txt").symlink_to(tmp_path / "outside.txt")
    (project / "nowhere").symlink_to("missing")
    (project / "folder-link").symlink_to("folder")
    (project / "round").symlink_to(".")
    found, summary = packed(project)
    assert found["inside.txt"] == b"mine"
    assert sorted(summary.left_out) == ["folder-link", "nowhere", "outside.txt", "round"]
    assert b"private" not in b"".join(found.values())


def test_dependencies_beside_the_folder_come_along_and_nothing_else(tmp_path: Path) -> None:
    config = {**CONFIG, "dependencies": [".", "../../shared", "./sub", "requests"]}
    write(tmp_path, {
        "apps/agent/langgraph.json": json.dumps(config), "apps/agent/sub/x.py": "", "shared/pyproject.toml": "",
        "apps/other/x.py": "", "x.py": "",
    })  # fmt: skip
    project = read_project(tmp_path / "apps" / "agent", "langgraph.json")
    assert project.config == "apps/agent/langgraph.json"
    found, _ = packed(tmp_path / "apps" / "agent")
    assert set(found) == {"apps/agent/langgraph.json", "apps/agent/sub/x.py", "shared/pyproject.toml"}


def test_workspaces_come_along(tmp_path: Path) -> None:
    agent = write(tmp_path / "work" / "apps" / "agent", {"langgraph.json": json.dumps(CONFIG), "package.json": "{}"})
    write(tmp_path / "work", {"package.json": '{"workspaces": ["apps/*", "libs/*"]}', "libs/shared/package.json": "{}"})
    assert set(packed(agent)[0]) == {"langgraph.json", "package.json"}
    write(tmp_path / "work", {".git/HEAD": ""})
    found = read_project(agent, "langgraph.json")
    assert (found.root, found.config) == (tmp_path / "work", "apps/agent/langgraph.json")
    assert "libs/shared/package.json" in packed(agent)[0]
    write(agent, {"package-lock.json": "{}"})
    assert set(packed(agent)[0]) == {"langgraph.json", "package.json", "package-lock.json"}


def test_the_env_file_is_packed_empty(project: Path) -> None:
    write(
        project, {"langgraph.json": json.dumps({**CONFIG, "env": ".env"}), ".env": "KEY=secret", ".gitignore": ".env"}
    )
    found, _ = packed(project)
    assert found[".env"] == b""


@pytest.mark.parametrize("env", [".env", "../.env", "/etc/passwd"])
def test_an_env_file_outside_the_folder_is_ignored(project: Path, env: str) -> None:
    write(project.parent, {".env": "KEY=outside"})
    write(project, {"langgraph.json": json.dumps({**CONFIG, "env": env})})
    read = read_project(project, "langgraph.json")
    assert read.env_file is None
    assert f'env is "{env}", but there is no such file in' in (read.missing_env or "")
    assert set(packed(project)[0]) == {"langgraph.json", "agent.py"}


def test_a_dependency_that_names_a_file_stands_for_its_folder(tmp_path: Path) -> None:
    config = {**CONFIG, "dependencies": ["./pyproject.toml", "../lib/pyproject.toml"]}
    write(tmp_path, {"app/langgraph.json": json.dumps(config), "app/pyproject.toml": "", "lib/pyproject.toml": ""})
    assert set(packed(tmp_path / "app")[0]) == {"app/langgraph.json", "app/pyproject.toml", "lib/pyproject.toml"}


def test_the_same_files_give_the_same_bytes(project: Path) -> None:
    archives = []
    for _ in range(2):
        file = io.BytesIO()
        pack(read_project(project, "langgraph.json"), file)
        archives.append(file.getvalue())
        (project / "agent.py").touch()
    assert archives[0] == archives[1]


@pytest.mark.parametrize(
    ("files", "config", "says"),
    [
        ({}, "nope.json", "has no nope.json"),
        ({}, "../outside.json", "is not inside"),
        ({"langgraph.json": "{"}, "langgraph.json", "cannot read"),
        ({"langgraph.json": '{"dependencies": 1}'}, "langgraph.json", "must be a list"),
        ({"langgraph.json": '{"dependencies": ["./no"]}'}, "langgraph.json", "./no"),
    ],
)
def test_packing_errors_name_the_file(project: Path, files, config: str, says: str) -> None:
    write(project, files)
    with pytest.raises(UserMistake, match=says):
        packed(project, config)


@pytest.mark.parametrize("name", [".dockerignore", ".gitignore"])
def test_an_excluded_configuration_file_is_refused(project: Path, name: str) -> None:
    write(project, {name: "*\n!agent.py\n"})
    with pytest.raises(UserMistake, match=r"excludes langgraph.json: change it, or deploy the repository"):
        packed(project)


def test_a_too_large_archive_is_refused(project: Path, monkeypatch) -> None:
    monkeypatch.setattr(deploy, "MAX_ARCHIVE_BYTES", 10)
    write(project, {f"{number}.txt": str(number) * 100_000 for number in range(20)})
    with pytest.raises(UserMistake, match="dockerignore"):
        packed(project)
