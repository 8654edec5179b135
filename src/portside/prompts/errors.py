"""What requests about prompts can fail of. Their clients look for the text under `error`."""

from typing import ClassVar

from portside.kernel.errors import Conflict, Forbidden, NotFound


class PromptNotFound(NotFound):
    """Prompt not found"""  # noqa: D415 - the exact text that clients know

    code = "prompt_not_found"
    error: ClassVar[str | None] = "Prompt not found"


class PromptExists(Conflict):
    """A prompt of this name exists already; push a commit to it, or choose another name."""

    code = "prompt_exists"
    error: ClassVar[str | None] = "A prompt of this name exists already"


class PromptOfOthers(Forbidden):
    """The prompt belongs to another workspace; it can be read, not changed."""

    code = "prompt_of_others"
    error: ClassVar[str | None] = "The prompt belongs to another workspace"


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
