"""Builds that the user's cache keeps for the next checkout."""

import os
from pathlib import Path

import pytest
from scripts import kept_builds
from scripts.kept_builds import KEPT, CannotBuildError, KeptBuilds


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptBuilds:
    monkeypatch.setattr(kept_builds, "CACHE", tmp_path / "cache")
    return KeptBuilds("site", result="index.html")


def build(target: Path) -> None:
    target.mkdir()
    (target / "index.html").write_text("new")


def refuse(_target: Path) -> None:
    raise CannotBuildError("there is no network")


def test_second_checkout_gets_the_build_of_the_first(builds: KeptBuilds, tmp_path: Path):
    builds.install(tmp_path / "first", "aa", build)
    builds.install(tmp_path / "second", "aa", refuse)
    assert (tmp_path / "second" / "index.html").read_text() == "new"


def test_same_sources_are_not_installed_again(builds: KeptBuilds, tmp_path: Path):
    builds.install(tmp_path / "help", "aa", build)
    (tmp_path / "help" / "index.html").write_text("changed by hand")
    builds.install(tmp_path / "help", "aa", refuse)
    assert (tmp_path / "help" / "index.html").read_text() == "changed by hand"


def test_files_of_other_sources_are_replaced(builds: KeptBuilds, tmp_path: Path):
    builds.install(tmp_path / "help", "aa", build)
    (tmp_path / "help" / "old.html").touch()
    builds.install(tmp_path / "help", "bb", build)
    assert not (tmp_path / "help" / "old.html").exists()


def test_failed_build_changes_nothing(builds: KeptBuilds, tmp_path: Path):
    builds.install(tmp_path / "help", "aa", build)
    with pytest.raises(CannotBuildError):
        builds.install(tmp_path / "help", "bb", refuse)

    assert (tmp_path / "help" / "index.html").read_text() == "new"
    assert not [*builds.folder.glob("bb/*")]


def test_oldest_builds_are_dropped(builds: KeptBuilds, tmp_path: Path):
    for number in range(KEPT + 2):
        builds.install(tmp_path / "help", str(number), build)
        os.utime(builds.folder / str(number), (number, number))

    assert {each.parent.name for each in builds.folder.glob("*/static")} == {
        str(number) for number in range(2, KEPT + 2)
    }
