"""`portside deploy` packs the project and its local dependencies, but no secrets and no ignored files."""

import io
import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from portside.cli import deploy, packing
from portside.cli.packing import Packed, pack, read_project
from portside.cli.project_check import check_project, check_source_path, has_own_logins
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


def pack_folder(folder: Path, config: str = "langgraph.json") -> tuple[dict[str, bytes], Packed]:
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
    write(
        project,
        {
            ".gitignore": "*.log\nout/\n!keep.log\n/top.txt\n",
            ".dockerignore": "# a comment\ndata\n*.md\n!README.md\n",
            "a.log": "",
            "keep.log": "",
            "out/x": "",
            "top.txt": "",
            "sub/top.txt": "",
            "sub/.gitignore": "mine\n!b.log\n",
            "sub/mine": "",
            "sub/b.log": "",
            "data/x": "",
            "sub/data/x": "",
            "README.md": "",
            "NOTES.md": "",
            ".git/config": "",
            ".venv/x": "",
            "node_modules/x": "",
            "sub/__pycache__/x.pyc": "",
            "x.pyc": "",
        },
    )

    assert set(pack_folder(project)[0]) == {
        "langgraph.json",
        "agent.py",
        ".gitignore",
        ".dockerignore",
        "keep.log",
        "sub/top.txt",
        "sub/.gitignore",
        "sub/b.log",
        "sub/data/x",
        "README.md",
    }


def test_gitignore_of_the_enclosing_repository_applies(project: Path) -> None:
    write(project.parent, {".git/HEAD": "", ".gitignore": "*.secret\n"})
    write(project, {"a.secret": ""})
    assert set(pack_folder(project)[0]) == {"langgraph.json", "agent.py"}


def test_programs_stay_executable(project: Path) -> None:
    write(project, {"run.sh": "#!/bin/sh\n"})
    (project / "run.sh").chmod(0o700)
    file = io.BytesIO()
    pack(read_project(project, "langgraph.json"), file)
    file.seek(0)

    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        modes = {member.name: member.mode for member in archive}

    assert modes == {"run.sh": 0o755, "agent.py": 0o644, "langgraph.json": 0o644}


def test_links_to_outside_are_left_out(project: Path, tmp_path: Path) -> None:
    write(tmp_path, {"outside.txt": "private"})
    write(project, {"real.txt": "mine", "folder/x": ""})
    (project / "inside.txt").symlink_to("real.txt")
    (project / "outside.txt").symlink_to(tmp_path / "outside.txt")
    (project / "nowhere").symlink_to("missing")
    (project / "folder-link").symlink_to("folder")
    (project / "round").symlink_to(".")

    found, summary = pack_folder(project)
    assert found["inside.txt"] == b"mine"
    assert sorted(summary.left_out) == ["folder-link", "nowhere", "outside.txt", "round"]
    assert b"private" not in b"".join(found.values())


def test_dependencies_beside_the_folder_come_along_and_nothing_else(tmp_path: Path) -> None:
    config = {**CONFIG, "dependencies": [".", "../../shared", "./sub", "requests"]}
    write(
        tmp_path,
        {
            "apps/agent/langgraph.json": json.dumps(config),
            "apps/agent/sub/x.py": "",
            "shared/pyproject.toml": "",
            "apps/other/x.py": "",
            "x.py": "",
        },
    )

    project = read_project(tmp_path / "apps" / "agent", "langgraph.json")
    assert project.config == "apps/agent/langgraph.json"
    found, _ = pack_folder(tmp_path / "apps" / "agent")
    assert set(found) == {"apps/agent/langgraph.json", "apps/agent/sub/x.py", "shared/pyproject.toml"}


def test_workspaces_come_along(tmp_path: Path) -> None:
    agent = write(tmp_path / "work" / "apps" / "agent", {"langgraph.json": json.dumps(CONFIG), "package.json": "{}"})
    write(tmp_path / "work", {"package.json": '{"workspaces": ["apps/*", "libs/*"]}', "libs/shared/package.json": "{}"})
    assert set(pack_folder(agent)[0]) == {"langgraph.json", "package.json"}
    write(tmp_path / "work", {".git/HEAD": ""})

    found = read_project(agent, "langgraph.json")
    assert (found.root, found.config) == (tmp_path / "work", "apps/agent/langgraph.json")
    assert "libs/shared/package.json" in pack_folder(agent)[0]
    write(agent, {"package-lock.json": "{}"})
    assert set(pack_folder(agent)[0]) == {"langgraph.json", "package.json", "package-lock.json"}


def test_the_env_file_is_packed_empty(project: Path) -> None:
    write(
        project, {"langgraph.json": json.dumps({**CONFIG, "env": ".env"}), ".env": "KEY=secret", ".gitignore": ".env"}
    )
    found, _ = pack_folder(project)
    assert found[".env"] == b""


@pytest.mark.parametrize("env", [".env", "../.env", "/etc/passwd"])
def test_an_env_file_outside_the_folder_is_ignored(project: Path, env: str) -> None:
    write(project.parent, {".env": "KEY=outside"})
    write(project, {"langgraph.json": json.dumps({**CONFIG, "env": env})})
    read = read_project(project, "langgraph.json")
    assert read.env_file is None
    assert f'env is "{env}", but there is no such file in' in (read.missing_env or "")
    assert set(pack_folder(project)[0]) == {"langgraph.json", "agent.py"}


def test_a_dependency_that_names_a_file_stands_for_its_folder(tmp_path: Path) -> None:
    config = {**CONFIG, "dependencies": ["./pyproject.toml", "../lib/pyproject.toml"]}
    write(tmp_path, {"app/langgraph.json": json.dumps(config), "app/pyproject.toml": "", "lib/pyproject.toml": ""})
    assert set(pack_folder(tmp_path / "app")[0]) == {"app/langgraph.json", "app/pyproject.toml", "lib/pyproject.toml"}


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
        ({"langgraph.json": "{"}, "langgraph.json", "is not valid JSON: .* \\(line 1, column 2\\)"),
        ({"langgraph.json": '{"dependencies": 1}'}, "langgraph.json", "must be a list"),
        ({"langgraph.json": '{"dependencies": ["./no"]}'}, "langgraph.json", "./no"),
    ],
)
def test_packing_errors_name_the_file(project: Path, files, config: str, says: str) -> None:
    write(project, files)
    with pytest.raises(UserMistake, match=says):
        pack_folder(project, config)


@pytest.mark.parametrize("name", [".dockerignore", ".gitignore"])
def test_an_excluded_configuration_file_is_refused(project: Path, name: str) -> None:
    write(project, {name: "*\n!agent.py\n"})
    with pytest.raises(UserMistake, match=r"excludes langgraph.json: change it, or deploy the repository"):
        pack_folder(project)


def test_a_too_large_archive_is_refused(project: Path, monkeypatch) -> None:
    monkeypatch.setattr(packing, "MAX_ARCHIVE_BYTES", 10)
    write(project, {f"{number}.txt": str(number) * 100_000 for number in range(20)})
    write(project, {"models/large.bin": "x" * 3_000_000})

    with pytest.raises(UserMistake, match=r"largest files so far: models/large\.bin \(2\.9 MB\), .*dockerignore"):
        pack_folder(project)


def check(content: str, *files: str, config: str = "langgraph.json") -> None:
    check_project(content.encode(), config, lambda path: path in files)


def test_a_priority_object_is_said_to_have_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    check('{"graphs": {"a": "./a.py:graph"}, "priority": {"path": "./p.py:priority"}}', "a.py")
    assert "'priority' has no effect: runs are ordered by run_priority" in capsys.readouterr().err


def test_a_file_may_be_named_from_the_folder_above_its_configuration() -> None:
    check('{"graphs": {"a": "./sub/agent.py:graph"}}', "sub/agent.py", config="sub/langgraph.json")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"graph": {}}', 'there is a key "graph", which must be "graphs"'),
        ('{"graphs": {"agent": "./agnt.py:graph"}}', "graph 'agent' is in ./agnt.py, but there is no such file"),
        ('{"graphs": {"a": {"path": "src/a.py:g"}}}', "graph 'a' is in src/a.py"),
        ('{"graphs": {"a": "agent.py:g"}, "auth": {"path": "auth.py:auth"}}', "auth.path is in auth.py"),
        ('{"graphs": {"a": "agent.py:g"}, "http": {"app": "./web.py:app"}}', "http.app is in ./web.py"),
    ],
)
def test_mistakes_are_said_before_anything_is_packed(content: str, says: str) -> None:
    with pytest.raises(UserMistake, match=re.escape(says)):
        check(content, "agent.py")


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        ({}, False),
        ({"disable": True}, False),
        ({"path": "./auth.py:auth"}, True),
        ({"path": "./auth.py:auth", "allow_langsmith_api_keys": True}, False),
    ],
)
def test_an_agent_with_logins_of_its_own_refuses_keys(auth: dict[str, Any], *, expected: bool) -> None:
    assert has_own_logins(json.dumps({"graphs": {}, "auth": auth}).encode(), "langgraph.json") is expected
    assert not has_own_logins(b'{"graphs": {}}', "langgraph.json")


def test_files_that_a_build_makes_and_modules_are_not_looked_for() -> None:
    check(
        '{"graphs": {"a": "dist/a.js:g", "b": "package.module:g", "c": "../up/c.py:g"}}', "up/c.py", config="x/g.json"
    )


def test_misspelt_keys_are_said_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    check('{"graphs": {"a": "agent.py:g"}, "dependancies": ["."]}', "agent.py")
    assert "'dependancies' is unknown and has no effect; did you mean 'dependencies'?" in capsys.readouterr().err


def test_files_and_folders_in_each_others_place_are_named(project: Path) -> None:
    with pytest.raises(UserMistake, match=r"langgraph\.json is a file; name its folder: .* --config langgraph\.json"):
        check_source_path(project / "langgraph.json", "langgraph.json")

    with pytest.raises(UserMistake, match=r"agent\.py is a file; name the folder that has it"):
        check_source_path(project / "agent.py", "langgraph.json")

    write(project, {"apps/one/graph.json": "{}"})
    with pytest.raises(UserMistake, match=r"apps is a folder; name the configuration file in it"):
        pack_folder(project, "apps")

    (project / "langgraph.json").unlink()
    with pytest.raises(UserMistake, match=r"has no langgraph\.json, but apps/one/graph\.json: deploy with --config"):
        pack_folder(project)


def test_the_commit_is_checked_and_not_the_folder(project: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *who, *arguments], cwd=project, check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch=main")
    write(project, {"notes": ""})
    git("add", "notes")
    git("commit", "--quiet", "--message=one")

    with pytest.raises(UserMistake, match=r"langgraph\.json is not committed on main; commit it, or use --upload"):
        deploy.check_commit(project, "main", "langgraph.json")

    git("add", "langgraph.json")
    git("commit", "--quiet", "--message=two")
    with pytest.raises(UserMistake, match=r"graph 'agent' is in \./agent\.py, but there is no such file"):
        deploy.check_commit(project, "main", "langgraph.json")

    git("add", "agent.py")
    git("commit", "--quiet", "--message=three")
    deploy.check_commit(project, "main", "./langgraph.json")
