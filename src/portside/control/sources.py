"""The sources of deployments: the fields that belong to each source, and the checks of git and image references.

    git_hosting       a repository, built             external_image    an image from any registry
    internal_source   an uploaded archive, built      internal_docker   an image that is pushed later

Deployments from the sources in the second line may be created without code; a PATCH then starts their first revision.
Git values are checked so that they are safe as arguments of git and as paths; nothing here talks to a repository.
"""

import re
from urllib.parse import urlsplit

from portside.control.errors import BadCombination, SourceNotAvailable
from portside.control.types import SourceConfig, SourceRevisionRequest
from portside.kernel.aliases import canonical_source
from portside.kernel.errors import Invalid

_REMOTE = re.compile(
    r"(?:https?|ssh|git)://(?:[^\s\x00-\x1f@/-][^\s\x00-\x1f@/]*@)?(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?/[^\s\x00-\x1f\x7f]+"
)
_LOCAL = re.compile(r"(?:file://)?/[^\x00-\x1f\x7f]*")
_SCP_LIKE = re.compile(r"[A-Za-z0-9_][\w.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:(?!:)[^\s\x00-\x1f\x7f]+")
_UNFIT_FOR_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)|^[-/.]|[/.]$|^@$")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_OWNER_AND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9_][\w.-]{0,99}", re.ASCII)
_CREDENTIALS = re.compile(r"^(https?://)[^/@]+@")
GIT = "git_hosting"
IMAGE = "external_image"
ARCHIVE = "internal_source"
PUSHED = "internal_docker"
AVAILABLE = (GIT, IMAGE, ARCHIVE, PUSHED)
CODE_COMES_LATER = (ARCHIVE, PUSHED)
# The sources that a field belongs to.
# `custom_url` is missing on purpose: it is read-only for all sources but images, and clients may send it back.
_CONFIG_FIELDS: dict[str, tuple[str, ...]] = {
    "integration_id": (GIT,),
    "repo_url": (GIT,),
    "build_on_push": (GIT,),
    "deployment_type": (GIT, ARCHIVE, PUSHED),
    "install_command": (GIT, ARCHIVE),
    "build_command": (GIT, ARCHIVE),
    "resource_spec": (IMAGE,),
    "listener_id": (IMAGE, PUSHED),
    "listener_config": (IMAGE, PUSHED),
}
_REVISION_FIELDS: dict[str, tuple[str, ...]] = {
    "repo_ref": (GIT,),
    "graph_config_path": (GIT, ARCHIVE),
    "image_uri": (IMAGE, PUSHED),
    "source_tarball_path": (ARCHIVE,),
}
REQUIRED: dict[str, tuple[str, ...]] = {
    GIT: ("graph_config_path",),
    IMAGE: ("image_uri",),
    ARCHIVE: ("source_tarball_path", "graph_config_path"),
    PUSHED: ("image_uri",),
}
_IMAGE_URI = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?/)?"
    r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*)*"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)


def check_repo_url(url: str) -> None:
    """Accept https, http, ssh, git and file addresses, `user@host:path` and absolute paths. Raises Invalid."""
    is_known_form = any(form.fullmatch(url) for form in (_REMOTE, _LOCAL, _SCP_LIKE))
    if not is_known_form or not _has_good_port(url):
        problem = "must be an https, http, ssh, git or file address, user@host:path, or an absolute path"
        if github_url := to_github_url(url):
            problem += f"; did you mean {github_url}?"

        raise Invalid.field(["body", "source_config", "repo_url"], problem)


def to_github_url(name: str) -> str | None:
    """Return the GitHub address for `owner/name`; None for any other text."""
    return f"https://github.com/{name.removesuffix('.git')}" if _OWNER_AND_NAME.fullmatch(name) else None


def _has_good_port(url: str) -> bool:
    try:
        return "://" not in url or urlsplit(url).port != 0
    except ValueError:
        return False


def check_repo_ref(ref: str) -> None:
    """Accept a branch name, a tag as `refs/tags/…` or a full commit id. Raises Invalid."""
    where = ["body", "source_revision_config", "repo_ref"]
    if not ref or _UNFIT_FOR_REF.search(ref):
        raise Invalid.field(where, "is not a name that git accepts for a branch or tag")
    if ref.startswith("refs/") and not is_tag(ref):
        raise Invalid.field(where, "must be a branch name alone, or a tag as refs/tags/NAME")


def is_tag(ref: str) -> bool:
    """Whether the ref is a tag. Pushes never move a tag, so it cannot be built on push."""
    return ref.startswith("refs/tags/")


def check_push(*, build_on_push: bool | None, repo_ref: str | None) -> None:
    """Refuse build_on_push for a tag or a commit. Raises BadCombination."""
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
    """Return an http address without its user name and password."""
    return _CREDENTIALS.sub(r"\1", url)


def check_source(source: str) -> None:
    """Refuse a source that this installation does not support. Raises SourceNotAvailable."""
    if canonical_source(source) not in AVAILABLE:
        raise SourceNotAvailable(f"The source {source} is not available; use one of {', '.join(AVAILABLE)}.")


def check_revision_source(revision_source: str, deployment_source: str) -> None:
    """Check a PATCH's `revision_source`. Raises SourceNotAvailable and BadCombination."""
    check_source(revision_source)

    new_source = canonical_source(revision_source)
    source = canonical_source(deployment_source)
    if new_source != source and (source == IMAGE or new_source in {GIT, IMAGE}):
        raise BadCombination(f"revision_source {revision_source} cannot be used for a deployment from {source}.")


def check_source_fields(
    source: str, revision_source: str, config: SourceConfig, revision: SourceRevisionRequest
) -> None:
    """Refuse a field that belongs to another source. Both are canonical names. Raises BadCombination."""
    for name, owners in _CONFIG_FIELDS.items():
        if getattr(config, name) is not None and not {source, revision_source} & {*owners}:
            raise BadCombination(f"source_config.{name} can only be set for {' and '.join(owners)} deployments.")

    for name, owners in _REVISION_FIELDS.items():
        if getattr(revision, name) is not None and revision_source not in owners:
            raise BadCombination(
                f"source_revision_config.{name} can only be set for {' and '.join(owners)} revisions, "
                f"and this is one of {revision_source}."
            )


def build_required_error(source: str, name: str) -> BadCombination:
    """Return the error for a missing field that the source requires."""
    return BadCombination(f"{name} is required for {source} deployments.")


def check_image_uri(uri: str) -> None:
    """Accept an image reference: a path with an optional host, tag and digest. Raises Invalid."""
    if not _IMAGE_URI.fullmatch(uri):
        raise Invalid.field(
            ["body", "source_revision_config", "image_uri"],
            "must be an image reference, such as host:5000/team/agent:1.2 or team/agent@sha256:…",
        )


def get_image_version(uri: str | None) -> str | None:
    """Return the tag of an image reference, else its digest, else `latest`; None without a reference."""
    match = _IMAGE_URI.fullmatch(uri or "")
    if match is None:
        return None

    return match["tag"] or match["digest"] or "latest"
