"""Git integrations as clients know them (contract: section 3.7), and as they are added and changed here."""

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from portside.control.types.deployments import ONE_LINE, Line

GitHostKind = Literal["github", "gitlab", "gitea"]
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=ONE_LINE)]
Token = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[\x21-\x7e]+$(?!\n)")]


class Integration(msgspec.Struct, frozen=True, kw_only=True):
    """An account at a git host; its id goes into `source_config.integration_id`. `kind` is `git` for plain git."""

    id: UUID
    installation_id: int
    name: str
    kind: str
    base_url: str | None
    has_token: bool
    has_webhook: bool


class IntegrationCreate(msgspec.Struct, kw_only=True):
    """An account at a git host. Forgejo is of kind `gitea`; `base_url` is needed where the host is not the public one.

    Without a token it reaches public repositories, and can still have a webhook.
    """

    name: Name
    kind: GitHostKind
    base_url: Line | None = None
    token: Token | None = None


class IntegrationPatch(msgspec.Struct, kw_only=True):
    """A new token for an integration."""

    token: Token


class PushWebhook(msgspec.Struct):
    """What to enter at the git host. The secret is not shown again."""

    url: str
    secret: str
    content_type: str = "application/json"
    events: list[str] = msgspec.field(default_factory=lambda: ["push"])


class GitRepository(msgspec.Struct):
    """A repository that an integration reaches: `url` and `default_branch` are what a deployment names."""

    host_integration_id: UUID
    id: int
    name: str
    owner: str
    url: str
    default_branch: str | None


class PushAnswer(msgspec.Struct):
    """What became of a push: the revisions it made, or why it made none."""

    revision_ids: list[UUID] = []
    ignored: str | None = None
