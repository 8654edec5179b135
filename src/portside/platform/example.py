"""The example agent as a git repository of the home folder, so that the first deployment is like any other."""

import os
import shutil
import subprocess
from pathlib import Path

import portside
from portside.kernel.errors import UserMistake

NAME = "hello-agent"
_IDENTITY = ("-c", "user.name=Portside", "-c", "user.email=portside@localhost", "-c", "commit.gpgsign=false")


def make_repository(target: Path) -> Path:
    """Make the repository unless it is there, and return its folder. Raises UserMistake without git."""
    if (target / ".git").is_dir():
        return target
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(_source(), fresh, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    _git(fresh, "init", "--quiet", "--initial-branch=main")
    _git(fresh, "add", "--all")
    _git(fresh, *_IDENTITY, "commit", "--quiet", "--message", "The hello agent")
    fresh.rename(target)
    return target


def _source() -> Path:
    """Find the example beside an installed package or in a checkout."""
    package = Path(portside.__file__).parent
    for folder in (package / "examples" / NAME, package.parents[1] / "examples" / NAME):
        if (folder / "langgraph.json").is_file():
            return folder
    raise UserMistake("this installation has no example agent; start with --no-example")


def _git(folder: Path, *arguments: str) -> None:
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError as exc:
        raise UserMistake("git is needed to deploy from repositories; install it") from exc
    if done.returncode != 0:
        raise UserMistake(f"git {arguments[0]} failed: {done.stderr.strip()}")
