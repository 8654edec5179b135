"""The running version with the commit it was built from: 0.1.0+g1234567.

Wheels of deployments and images contain the commit in a file of the package. In a checkout, git reports it. Other
installations have the plain version.
"""

import subprocess
from functools import cache
from pathlib import Path

from portside import __version__

COMMIT_FILE = "commit.txt"
_LENGTH = 7
_TIMEOUT_S = 5.0


@cache
def commit() -> str | None:
    """Return the short hash of the commit that the package was built from, or None if it is unknown."""
    package = Path(__file__).parents[1]
    return read_commit(package) or _read_checkout_commit(package.parents[1])


@cache
def full_version() -> str:
    """Return the version, with the commit if it is known."""
    return with_commit(__version__, commit())


def with_commit(version: str, commit: str | None) -> str:
    """Return a version with a commit as its local part."""
    return f"{version}+g{commit}" if commit else version


def read_commit(package: Path) -> str | None:
    """Return the commit in the file of a package folder, or None if there is none."""
    try:
        text = (package / COMMIT_FILE).read_text("ascii").strip().lower()
    except (OSError, ValueError):
        return None

    is_hash = len(text) >= _LENGTH and set(text) <= set("0123456789abcdef")
    return text[:_LENGTH] if is_hash else None


def _read_checkout_commit(folder: Path) -> str | None:
    # The installation may be inside another repository, for example one of dotfiles in the home folder.
    if not (folder / ".git").exists() or not (folder / "src" / "portside").is_dir():
        return None

    command = ["git", "-C", str(folder), "rev-parse", f"--short={_LENGTH}", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None

    if result.returncode != 0:
        return None

    return result.stdout.strip()[:_LENGTH] or None
