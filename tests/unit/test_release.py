"""A release says all that prevents it before it builds anything, and reaches the branch and the tag at the very end."""

import importlib.util
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CHANGELOG = "# Changelog\n\n## Unreleased\n\n### Added\n\n- Something.\n\n## 0.1.0 - 2026-01-02\n\n- The first one.\n"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, repository: Path) -> ModuleType:
    """The program, for a small repository."""
    spec = importlib.util.spec_from_file_location("release_script", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "release_script", module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", repository)
    return module


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "src" / "portside").mkdir(parents=True)
    (folder / "src" / "portside" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (folder / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    (folder / "compose.yaml").write_text("image: localhost/portside:0.1.0\n")
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    (folder / ".gitignore").write_text("build/\ndist/\n")
    (folder / "scripts").mkdir()
    (folder / "scripts" / "generate.py").touch()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "config", "user.name", "Somebody")
    git(folder, "config", "user.email", "somebody@example.com")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "Begin")
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def make_release(script: ModuleType, version: str = "0.2.0", *, only_files: bool = False):
    options = script.Options(
        version=version,
        is_dry_run=False,
        has_tag=True,
        only_files=only_files,
        has_images=False,
        engine=None,
        image_base=None,
        image_options=[],
    )
    return script.Release(options)


def find_reasons(script: ModuleType, version: str = "0.2.0", *, only_files: bool = False) -> str:
    with pytest.raises(script.ReleaseError) as refused:
        script.examine(make_release(script, version, only_files=only_files))

    return str(refused.value)


@pytest.mark.parametrize("version", ["1", "0.2", "v0.2.0", "0.2.0-rc1", "0.2.0.dev1", "", "0.2.0+local"])
def test_version_has_three_numbers(script: ModuleType, version: str):
    assert "write MAJOR.MINOR.PATCH" in find_reasons(script, version)


def test_all_reasons_are_said_at_once(script: ModuleType, repository: Path):
    git(repository, "tag", "v0.2.0")
    (repository / "CHANGELOG.md").write_text(CHANGELOG.replace("- Something.\n", ""))
    reasons = find_reasons(script)
    assert "the working tree has changes" in reasons
    assert "the tag v0.2.0 exists already" in reasons
    assert "nothing under '## Unreleased'" in reasons


def test_versions_grow(script: ModuleType, repository: Path):
    git(repository, "tag", "v0.3.0")
    git(repository, "tag", "vault")
    assert "0.2.0 is not newer than 0.3.0, which was released last" in find_reasons(script)
    git(repository, "tag", "--delete", "v0.3.0")
    assert "0.0.9 is older than 0.1.0, the version in pyproject.toml" in find_reasons(script, "0.0.9")
    assert "has a section 0.1.0 already" in find_reasons(script, "0.1.0")
    script.examine(make_release(script))


def test_files_alone_need_the_commit_of_the_release(script: ModuleType):
    reasons = find_reasons(script, only_files=True)
    assert "this commit is of version 0.1.0, not 0.2.0" in reasons
    assert "CHANGELOG.md has no section 0.2.0" in reasons
    script.examine(make_release(script, "0.1.0", only_files=True))


def test_section_of_the_changelog_gets_the_version_and_the_day(script: ModuleType):
    changelog = script.add_section(CHANGELOG, "0.2.0", date(2026, 5, 6))
    assert "## Unreleased\n\n## 0.2.0 - 2026-05-06\n\n### Added\n\n- Something.\n\n## 0.1.0" in changelog
    assert script.read_entries(CHANGELOG) == ["- Something."]
    assert script.read_entries(changelog) == []
    assert script.read_section(changelog, "0.2.0") == "### Added\n\n- Something.\n"
    assert script.read_section(changelog, "0.1.0") == "- The first one.\n"


def test_branch_and_tag_change_at_the_end_alone(script: ModuleType, repository: Path):
    before = git(repository, "rev-parse", "HEAD")
    release = make_release(script)
    script.examine(release)
    script.prepare_source(release)
    (release.files / "a-file").write_text("built")

    assert git(repository, "rev-parse", "HEAD") == before
    assert git(repository, "status", "--porcelain") == ""
    commit = release.commit
    script.prepare_source(release)
    assert release.commit == commit, "a second start goes on with the same commit"

    script.finish(release)
    assert git(repository, "rev-parse", "HEAD", "HEAD~1").split() == [commit, before]
    assert git(repository, "cat-file", "-t", "v0.2.0") == "tag"
    assert git(repository, "rev-parse", "v0.2.0^{commit}") == commit
    assert sorted(file.name for file in release.target.iterdir()) == ["SHA256SUMS", "a-file"]
    assert git(repository, "show", "HEAD:compose.yaml") == "image: localhost/portside:0.2.0"
    assert git(repository, "show", "HEAD:src/portside/__init__.py") == '__version__ = "0.2.0"'
    assert 'version = "0.2.0"' in git(repository, "show", "HEAD:pyproject.toml")
    assert git(repository, "status", "--porcelain") == ""

    # What a run does that was killed before the tag.
    git(repository, "tag", "--delete", "v0.2.0")
    script.examine(release)
    script.prepare_source(release)
    script.finish(release)
    assert git(repository, "rev-parse", "v0.2.0^{commit}") == commit


def test_branch_that_moved_on_gets_no_release(script: ModuleType, repository: Path):
    release = make_release(script)
    script.prepare_source(release)
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "Meanwhile")
    with pytest.raises(script.ReleaseError, match="the branch has moved on"):
        script.finish(release)

    assert git(repository, "tag") == ""
    assert not release.target.exists()
    stale = release.commit
    script.prepare_source(release)
    assert release.commit != stale, "it is made again upon the new commit"


def test_step_that_was_done_is_not_done_again(script: ModuleType):
    release = make_release(script)
    script.prepare_source(release)
    made = []
    step = script.Step("step", "make something", lambda _: made.append("once"))
    script.carry_out(release, step)
    script.carry_out(release, step)
    assert made == ["once"]
