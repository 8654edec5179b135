"""The values of prompts: what requests say, and prompts, commits and tags as the API shows them."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

# Letters that need no escape in an address, so that `owner/name:tag` means one thing.
Handle = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[a-z0-9][a-z0-9_-]*$(?!\n)")]
Description = Annotated[str, msgspec.Meta(max_length=20_000)]
Readme = Annotated[str, msgspec.Meta(max_length=1_000_000)]
Tags = Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=200)]], msgspec.Meta(max_length=100)]
TagName = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$(?!\n)")]
Limit = Annotated[int, msgspec.Meta(ge=1, le=100)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
LATEST = "latest"


class Settings(msgspec.Struct):
    """The workspace, as clients of prompts ask for it."""

    id: UUID
    display_name: str
    created_at: datetime
    tenant_handle: str


class Prompt(msgspec.Struct, kw_only=True):
    """A prompt's repository as the API shows it."""

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
    repo_type: str = "prompt"


class PromptAnswer(msgspec.Struct):
    """One prompt."""

    repo: Prompt


class PromptList(msgspec.Struct):
    """A page of prompts, and how many there are."""

    repos: list[Prompt]
    total: int


class PromptQuery(msgspec.Struct):
    """Which prompts of the workspace to list; `is_archived` is `allow` for both kinds."""

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
    """What to make a prompt of. Repositories of agents and skills are not there: they are refused."""

    repo_handle: Handle
    description: Description | None = None
    readme: Readme | None = None
    tags: Tags | None = None
    is_public: bool = False
    repo_type: str = "prompt"


class PromptPatch(msgspec.Struct):
    """What to change of a prompt; null means unchanged."""

    description: Description | None = None
    readme: Readme | None = None
    tags: Tags | None = None
    is_public: bool | None = None
    is_archived: bool | None = None


class CommitRequest(msgspec.Struct):
    """A manifest, and the commit that it comes after: the latest one, null for the first."""

    manifest: dict[str, Any]
    parent_commit: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    description: Annotated[str, msgspec.Meta(max_length=1000)] | None = None


class Commit(msgspec.Struct, kw_only=True):
    """A commit as lists show it, without its manifest."""

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


class CommitAnswer(msgspec.Struct):
    """One commit."""

    commit: Commit


class CommitList(msgspec.Struct):
    """A page of commits, and how many there are."""

    commits: list[Commit]
    total: int


class CommitQuery(msgspec.Struct):
    """Which commits to list, newest first; lists hold no manifests, with models or without."""

    limit: Limit | None = None
    offset: Offset = 0
    include_model: bool = False


class PullQuery(msgspec.Struct):
    """Whether to leave the model in the manifest."""

    include_model: bool = False


class Manifest(msgspec.Struct):
    """A commit with its manifest, as a client turns it into a prompt again."""

    commit_hash: str
    manifest: msgspec.Raw
    description: str | None
    examples: list[Any] = []


class TagRequest(msgspec.Struct):
    """A tag for a commit; it leaves the one that it was on."""

    tag_name: TagName
    commit_id: UUID


class TagPatch(msgspec.Struct):
    """The commit that a tag is to be on."""

    commit_id: UUID


class CommitTag(msgspec.Struct):
    """A tag and the commit that it is on."""

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
    """How many like the prompt."""

    likes: int
