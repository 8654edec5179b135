"""Local git repositories that `portside deploy` deploys from: what is checked out, and what their commits hold."""

import os
import re
import subprocess
from pathlib import Path

from portside.kernel.errors import UserMistake

_GIT_TIMEOUT_S = 30
_SHOWN_BRANCHES = 20
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def is_repository(folder: Path) -> bool:
    """Whether a folder is a git repository, with or without a work tree."""
    return (folder / ".git").exists() or all((folder / part).exists() for part in ("HEAD", "objects", "refs"))


def get_checked_out(folder: Path) -> str:
    """Return the checked-out branch, or the commit if none is checked out. Raises UserMistake."""
    commit = run_git(folder, "rev-parse", "--quiet", "--verify", "HEAD^{commit}").strip()
    if not commit:
        raise UserMistake(f"{folder} has no commit on its branch yet; commit your files or use --upload")

    return run_git(folder, "symbolic-ref", "--quiet", "--short", "HEAD").strip() or commit


def check_branch(folder: Path, ref: str) -> None:
    """Check that the repository has a branch. Raises UserMistake that lists its branches."""
    if ref.startswith("refs/") or _COMMIT.fullmatch(ref):
        return

    branches = run_git(folder, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/").splitlines()
    if ref not in branches:
        names = ", ".join(branches[:_SHOWN_BRANCHES]) or "none"
        more = f" and {len(branches) - _SHOWN_BRANCHES} more" if len(branches) > _SHOWN_BRANCHES else ""
        raise UserMistake(f"{folder} has no branch {ref}; its branches are {names}{more}")


def count_uncommitted(folder: Path) -> int:
    """Count the files that differ from the checked-out commit, except ignored ones."""
    if not (folder / ".git").exists():
        return 0
    return len(run_git(folder, "status", "--porcelain", "--untracked-files=all").splitlines())


def run_git(folder: Path, *arguments: str) -> str:
    """Run git and return its output, which is empty for exit status 1 (no). Raises UserMistake for other failures."""
    # A git hook of another repository may have set GIT_DIR and others to that repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.run(
            ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", *arguments],
            cwd=folder,
            env=environment | {"LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_GIT_TIMEOUT_S,
        )
    except OSError as exc:
        raise UserMistake(f"cannot run git: {exc.strerror}; install it, or add its folder to PATH") from exc
    except subprocess.TimeoutExpired as exc:
        raise UserMistake(f"git {arguments[0]} did not end within {_GIT_TIMEOUT_S} seconds in {folder}") from exc

    if process.returncode not in {0, 1}:
        raise UserMistake(f"git {arguments[0]} failed in {folder}: {process.stderr.strip()}")

    return process.stdout
