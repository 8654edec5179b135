"""The sources of deployments: which fields belong to which, and what a revision of each cannot do without.

    git_hosting       a repository, built             external_image    an image from anywhere, run as it is
    internal_source   an uploaded archive, built      internal_docker   an image, given once it was pushed

The last column's sources may be created with nothing to run yet; their first revision comes with a PATCH.
"""

import re

from portside.control.errors import BadCombination, SourceNotAvailable
from portside.control.types.deployments import SourceConfig, SourceRevisionRequest
from portside.kernel.errors import Invalid
from portside.kernel.spellings import canonical_source

GIT, IMAGE, ARCHIVE, PUSHED = "git_hosting", "external_image", "internal_source", "internal_docker"
AVAILABLE = (GIT, IMAGE, ARCHIVE, PUSHED)
CODE_COMES_LATER = (ARCHIVE, PUSHED)
# What the contract calls `custom_url` is not here: for all but images it is read-only, and a client may send it back.
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
    GIT: ("repo_ref", "graph_config_path"),
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


def check_source(source: str) -> None:
    """Raises SourceNotAvailable for a source that this installation cannot deploy from."""
    if canonical_source(source) not in AVAILABLE:
        raise SourceNotAvailable(f"The source {source} is not available; deploy from one of {', '.join(AVAILABLE)}.")


def check_revision_source(source: str, own: str) -> None:
    """Check what a PATCH names as the source of its revision. Raises SourceNotAvailable and BadCombination."""
    check_source(source)
    wanted, own = canonical_source(source), canonical_source(own)
    if wanted != own and (own == IMAGE or wanted in {GIT, IMAGE}):
        raise BadCombination(f"revision_source {source} makes no revision of a deployment from {own}.")


def check_belonging(source: str, revision_source: str, config: SourceConfig, revision: SourceRevisionRequest) -> None:
    """Raises BadCombination for a field of another source; both sources by their canonical names."""
    for name, belongs_to in _CONFIG_FIELDS.items():
        if getattr(config, name) is not None and not {source, revision_source} & {*belongs_to}:
            raise BadCombination(f"source_config.{name} can only be set for {_any_of(belongs_to)} deployments.")
    for name, belongs_to in _REVISION_FIELDS.items():
        if getattr(revision, name) is not None and revision_source not in belongs_to:
            raise BadCombination(
                f"source_revision_config.{name} can only be set for {_any_of(belongs_to)} revisions, "
                f"and this is one of {revision_source}."
            )


def required(source: str, name: str) -> BadCombination:
    """Make the refusal of what lacks a field that its source needs."""
    return BadCombination(f"{name} is required for {source} deployments.")


def check_image_uri(uri: str) -> None:
    """Accept a reference to an image: host, path, tag and digest, of which the path must be there. Raises Invalid."""
    if not _IMAGE_URI.fullmatch(uri):
        raise Invalid.field(
            ["body", "source_revision_config", "image_uri"],
            "must be the reference of an image, such as host:5000/team/agent:1.2 or team/agent@sha256:…",
        )


def image_version(uri: str | None) -> str | None:
    """Return the tag of an image, or else its digest; `latest` where a reference has neither, None without one."""
    match = _IMAGE_URI.fullmatch(uri or "")
    return (match["tag"] or match["digest"] or "latest") if match else None


def _any_of(names: tuple[str, ...]) -> str:
    return " and ".join(names)
