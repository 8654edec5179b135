"""What a git source may name: repository addresses, refs and the path of the graph configuration.

Each is checked so that it can stand on a git command line and in a path without meaning anything else; nothing here
talks to a repository. Refusals name the field and say what is accepted.
"""

import re
from urllib.parse import urlsplit

from portside.control.errors import BadCombination
from portside.kernel.errors import Invalid

_REMOTE = re.compile(
    r"(?:https?|ssh|git)://(?:[^\s\x00-\x1f@/-][^\s\x00-\x1f@/]*@)?(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?/[^\s\x00-\x1f\x7f]+"
)
_LOCAL = re.compile(r"(?:file://)?/[^\x00-\x1f\x7f]*")
_SCP_LIKE = re.compile(r"[A-Za-z0-9_][\w.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:(?!:)[^\s\x00-\x1f\x7f]+")
_UNFIT_FOR_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)|^[-/.]|[/.]$|^@$")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_CREDENTIALS = re.compile(r"^(https?://)[^/@]+@")


def check_repo_url(url: str) -> None:
    """Accept https, http, ssh, git and file addresses, `user@host:path` and absolute paths. Raises Invalid."""
    known = (_REMOTE, _LOCAL, _SCP_LIKE)
    if not any(form.fullmatch(url) for form in known) or not _has_good_port(url):
        raise Invalid.field(
            ["body", "source_config", "repo_url"],
            "must be an https, http, ssh, git or file address, user@host:path, or an absolute path",
        )


def _has_good_port(url: str) -> bool:
    try:
        return "://" not in url or urlsplit(url).port != 0
    except ValueError:
        return False


def check_repo_ref(ref: str) -> None:
    """Accept a branch's name, a tag as `refs/tags/…` or a full commit. Raises Invalid."""
    where = ["body", "source_revision_config", "repo_ref"]
    if not ref or _UNFIT_FOR_REF.search(ref):
        raise Invalid.field(where, "is not a name that git accepts for a branch or tag")
    if ref.startswith("refs/") and not is_tag(ref):
        raise Invalid.field(where, "must be a branch name alone, or a tag as refs/tags/NAME")


def is_tag(ref: str) -> bool:
    """Whether the ref is a tag and so can never be pushed to."""
    return ref.startswith("refs/tags/")


def check_push(*, build_on_push: bool | None, repo_ref: str | None) -> None:
    """Check the two fields that exclude each other. Raises BadCombination."""
    if build_on_push and (is_tag(repo_ref or "") or _COMMIT.fullmatch(repo_ref or "")):
        raise BadCombination(
            "source_config.build_on_push must be false when source_revision_config.repo_ref is a tag or a commit."
        )


def check_config_path(path: str) -> None:
    """Accept a relative path that stays inside the repository. Raises Invalid."""
    parts = path.split("/")
    if not path or ".." in parts or path[0] in "/-" or re.search(r"[\x00-\x1f\x7f\\]", path):
        raise Invalid.field(
            ["body", "source_revision_config", "graph_config_path"],
            "must be a path inside the repository, relative to its root, such as langgraph.json",
        )


def hide_credentials(url: str) -> str:
    """Return the address without the user and password that an http address may carry."""
    return _CREDENTIALS.sub(r"\1", url)
