"""The types and errors of prompts. Clients of prompts read the text of an error in the field `error`."""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

import msgspec

from portside.kernel.errors import Conflict, Forbidden, NotFound

# No character needs escaping in an address, so `owner/name:tag` is unambiguous.
Handle = Annotated[
    str,
    msgspec.Meta(
        max_length=200,
        pattern=r"^[a-z0-9][a-z0-9_-]*$(?!\n)",
        description="lower-case letters, digits, hyphens and underscores",
    ),
]
Description = Annotated[str, msgspec.Meta(max_length=20_000)]
Readme = Annotated[str, msgspec.Meta(max_length=1_000_000)]
Tags = Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=200)]], msgspec.Meta(max_length=100)]
TagName = Annotated[
    str,
    msgspec.Meta(
        max_length=200,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$(?!\n)",
        description="letters, digits, dots, hyphens and underscores",
    ),
]
Limit = Annotated[int, msgspec.Meta(ge=1, le=100)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
RepoType = Literal["prompt", "agent", "skill"]
DirectoryType = Literal["agent", "skill"]
LATEST = "latest"


class Settings(msgspec.Struct):
    """The workspace, as clients of prompts read it."""

    id: UUID
    display_name: str
    created_at: datetime
    tenant_handle: str


class Prompt(msgspec.Struct, kw_only=True):
    """The repository of a prompt, an agent or a skill as the API returns it."""

    id: UUID
    tenant_id: UUID
    owner: str
    repo_handle: str
    full_name: str
    description: str
    readme: str
    tags: list[str]
    is_public: bool
    is_archived: bool
    num_likes: int
    num_downloads: int
    num_views: int
    num_commits: int
    liked_by_auth_user: bool
    last_commit_hash: str | None
    created_at: datetime
    updated_at: datetime
    repo_type: RepoType = "prompt"


class PromptResponse(msgspec.Struct):
    """One prompt."""

    repo: Prompt


class PromptList(msgspec.Struct):
    """A page of prompts, and the total number."""

    repos: list[Prompt]
    total: int


class PromptQuery(msgspec.Struct):
    """Filters and order of a list of repositories of one type; `is_archived` is `allow` for both kinds."""

    repo_type: RepoType = "prompt"
    query: Annotated[str, msgspec.Meta(max_length=1000)] | None = None
    match_prefix: bool | None = None
    is_public: bool | None = None
    is_archived: Literal["true", "false", "allow"] = "allow"
    tags: Tags | None = None
    sort_field: Literal["updated_at", "num_downloads", "num_views", "num_likes"] = "updated_at"
    sort_direction: Literal["asc", "desc"] = "desc"
    limit: Limit = 20
    offset: Offset = 0


class PromptRequest(msgspec.Struct):
    """A repository to create: of a prompt, or of the files of an agent or a skill."""

    repo_handle: Handle
    description: Description | None = None
    readme: Readme | None = None
    tags: Tags | None = None
    is_public: bool = False
    repo_type: RepoType = "prompt"


class PromptPatch(msgspec.Struct):
    """Changes of a prompt; null leaves a field unchanged."""

    description: Description | None = None
    readme: Readme | None = None
    tags: Tags | None = None
    is_public: bool | None = None
    is_archived: bool | None = None


class CommitRequest(msgspec.Struct):
    """A manifest and its parent commit: the latest commit, null for the first one."""

    manifest: dict[str, Any]
    parent_commit: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    description: Annotated[str, msgspec.Meta(max_length=1000)] | None = None


class Commit(msgspec.Struct, kw_only=True):
    """A commit in a list, without its manifest."""

    id: UUID
    repo_id: UUID
    parent_id: UUID | None
    commit_hash: str
    parent_commit_hash: str | None
    description: str | None
    num_downloads: int
    created_at: datetime
    updated_at: datetime
    num_views: int = 0
    example_run_ids: list[UUID] = []


class CommitResponse(msgspec.Struct):
    """One commit."""

    commit: Commit


class CommitList(msgspec.Struct):
    """A page of commits, and the total number."""

    commits: list[Commit]
    total: int


class CommitQuery(msgspec.Struct):
    """The page of a list of commits, newest first. Lists contain no manifests, so `include_model` has no effect."""

    limit: Limit | None = None
    offset: Offset = 0
    include_model: bool = False


class PullQuery(msgspec.Struct):
    """Whether to include the model of the manifest."""

    include_model: bool = False


class Manifest(msgspec.Struct):
    """A commit with its manifest, from which a client restores the prompt."""

    commit_hash: str
    manifest: msgspec.Raw
    description: str | None
    examples: list[Any] = []


class Entry(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A file with its content, or a link to the repository of an agent or a skill, whose latest commit it means.

    The hash and the id of that commit are in responses; in requests they have no effect.
    """

    type: Literal["file", "agent", "skill"]
    content: Annotated[str, msgspec.Meta(max_length=5_000_000)] | None = None
    repo_handle: Handle | None = None
    owner: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    commit_id: UUID | None = None
    commit_hash: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    selector: Any = None


class DirectoryCommitRequest(msgspec.Struct):
    """Files to write by their paths, null for those to remove; the others stay. A parent must be the latest commit."""

    files: Annotated[dict[str, Entry | None], msgspec.Meta(max_length=1000)]
    parent_commit: Annotated[str, msgspec.Meta(min_length=8, max_length=64)] | None = None


class DirectoryQuery(msgspec.Struct):
    """The commit to read: its hash, the beginning of the hash, a tag or `latest`; and the type that is expected."""

    commit: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    repo_type: DirectoryType | None = None


class DirectoryDeletion(msgspec.Struct):
    """The type that is expected: a repository of another type is not found."""

    repo_type: DirectoryType | None = None


class Directory(msgspec.Struct):
    """The files of a commit by their paths."""

    commit_id: UUID
    commit_hash: str
    files: dict[str, Entry]


class CommitTagRequest(msgspec.Struct):
    """A tag for a commit."""

    tag_name: TagName
    commit_id: UUID


class TagPatch(msgspec.Struct):
    """The new commit of a tag."""

    commit_id: UUID


class CommitTag(msgspec.Struct):
    """A tag and its commit."""

    id: UUID
    repo_id: UUID
    commit_id: UUID
    commit_hash: str
    tag_name: str
    created_at: datetime
    updated_at: datetime


class LikeRequest(msgspec.Struct):
    """Whether the caller likes the prompt."""

    like: bool


class Likes(msgspec.Struct):
    """The number of likes of a prompt."""

    likes: int


class PromptNotFound(NotFound):
    """Prompt not found"""  # noqa: D415 - the exact text that clients know

    code = "prompt_not_found"
    error: ClassVar[str | None] = "Prompt not found"


class PromptExists(Conflict):
    """A prompt with this name exists already; push a commit to it, or choose another name."""

    code = "prompt_exists"
    error: ClassVar[str | None] = "A prompt of this name exists already"


class PromptOfOthers(Forbidden):
    """The prompt belongs to another workspace; it can be read, not changed."""

    code = "prompt_of_others"
    error: ClassVar[str | None] = "The prompt belongs to another workspace"


class HoldsNoFiles(Conflict):
    """The repository holds a prompt and no files; push the files under another name."""

    code = "repository_holds_a_prompt"
    error: ClassVar[str | None] = "The repository holds a prompt and no files; push the files under another name"


class HoldsFiles(Conflict):
    """The repository holds the files of an agent or a skill and no prompt; push the prompt under another name."""

    code = "repository_holds_files"
    error: ClassVar[str | None] = (
        "The repository holds the files of an agent or a skill and no prompt; push the prompt under another name"
    )


class CommitNotFound(NotFound):
    """Commit not found"""  # noqa: D415 - the exact text that clients know

    code = "commit_not_found"
    error: ClassVar[str | None] = "Commit not found"


class ParentOutdated(Conflict):
    """The parent commit is not the latest one; pull the latest, and commit on top of it."""

    code = "parent_outdated"
    error: ClassVar[str | None] = "The parent commit is not the latest one"


class NothingToCommit(Conflict):
    """Nothing to commit: prompt has not changed since latest commit."""

    code = "nothing_to_commit"
    error: ClassVar[str | None] = "Nothing to commit: prompt has not changed since latest commit"


class PromptTagNotFound(NotFound):
    """The prompt has no such tag."""

    code = "prompt_tag_not_found"
    error: ClassVar[str | None] = "Tag not found"
