"""The version with the commit that it was built from."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from portside import __version__
from portside.dataplane.builds.wheel import pack_wheel, read_server_version
from portside.kernel import version


@pytest.mark.parametrize(
    ("text", "found"),
    [("0123456789abcdef\n", "0123456"), ("ABCDEF0", "abcdef0"), ("", None), ("main", None), ("rm -rf /", None)],
)
def test_commit_file_is_read(tmp_path: Path, text: str, found: str | None):
    assert version.read_commit(tmp_path) is None
    (tmp_path / version.COMMIT_FILE).write_text(text)
    assert version.read_commit(tmp_path) == found


def test_commit_comes_from_the_checkout_but_not_from_an_outer_repository(tmp_path: Path):
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    assert version._read_checkout_commit(tmp_path) is None
    (tmp_path / "src" / "portside").mkdir(parents=True)
    assert version._read_checkout_commit(tmp_path) == git("rev-parse", "HEAD")[:7]
    assert version._read_checkout_commit(tmp_path / "src") is None


def test_wheel_contains_the_commit(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("portside.dataplane.builds.wheel.commit", lambda: "1234567")
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    assert read_server_version(tmp_path / "venv") is None

    with zipfile.ZipFile(pack_wheel(tmp_path / "wheels")) as wheel:
        wheel.extractall(packages)

    assert read_server_version(tmp_path / "venv") == f"{__version__}+g1234567"
    (packages / "portside" / version.COMMIT_FILE).unlink()
    assert read_server_version(tmp_path / "venv") == __version__
