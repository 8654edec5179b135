"""Prompts over HTTP (contract: hosted API, section f.4). Clients put a slash behind lists; both ways are routes."""

from starlette.responses import Response

from portside.kernel.errors import Invalid
from portside.kernel.http.routes import Context, Routes
from portside.prompts import commits, repos
from portside.prompts.errors import (
    CommitNotFound,
    NothingToCommit,
    ParentOutdated,
    PromptExists,
    PromptNotFound,
    PromptOfOthers,
    PromptTagNotFound,
)
from portside.prompts.types import (
    CommitAnswer,
    CommitList,
    CommitQuery,
    CommitRequest,
    CommitTag,
    LikeRequest,
    Likes,
    Manifest,
    PromptAnswer,
    PromptList,
    PromptPatch,
    PromptQuery,
    PromptRequest,
    PullQuery,
    Settings,
    TagPatch,
    TagRequest,
)

routes = Routes("prompts")
_CHANGES = (PromptNotFound, PromptOfOthers)


@routes.get("/settings", permission="prompts:read")
async def show_settings(ctx: Context) -> Settings:
    """Return the workspace that the key is for, and its handle, which owns its prompts."""
    return await repos.show_settings(ctx.db, by=ctx.actor)


@routes.get("/repos", permission="prompts:read")
@routes.get("/repos/", permission="prompts:read")
async def list_prompts(ctx: Context, query: PromptQuery) -> PromptList:
    """List the workspace's prompts, what was changed last first unless the query sorts them."""
    return await repos.list_prompts(ctx.db, query, by=ctx.actor)


@routes.post("/repos", permission="prompts:create", raises=(PromptExists, Invalid))
@routes.post("/repos/", permission="prompts:create", raises=(PromptExists, Invalid))
async def create_prompt(ctx: Context, body: PromptRequest) -> PromptAnswer:
    """Make a prompt, without any commit."""
    return PromptAnswer(await repos.create_prompt(ctx.db, body, by=ctx.actor))


@routes.get("/repos/{owner}/{repo}", permission="prompts:read", raises=(PromptNotFound,))
async def show_prompt(ctx: Context, owner: str, repo: str) -> PromptAnswer:
    """Return a prompt; the owner `-` is the caller's own workspace."""
    return PromptAnswer(await repos.show_prompt(ctx.db, owner, repo, by=ctx.actor))


@routes.patch("/repos/{owner}/{repo}", permission="prompts:update", raises=_CHANGES)
async def update_prompt(ctx: Context, owner: str, repo: str, body: PromptPatch) -> PromptAnswer:
    """Change what is said about a prompt; null means unchanged."""
    return PromptAnswer(await repos.update_prompt(ctx.db, owner, repo, body, by=ctx.actor))


@routes.delete("/repos/{owner}/{repo}", permission="prompts:delete", raises=_CHANGES)
async def delete_prompt(ctx: Context, owner: str, repo: str) -> Response:
    """Delete a prompt with all its commits."""
    await repos.delete_prompt(ctx.db, owner, repo, by=ctx.actor)
    return Response(b"{}", media_type="application/json")


@routes.get("/repos/{owner}/{repo}/tags", permission="prompts:read", raises=(PromptNotFound,))
async def list_prompt_tags(ctx: Context, owner: str, repo: str) -> list[CommitTag]:
    """List the tags on the commits of a prompt."""
    return await commits.list_tags(ctx.db, owner, repo, by=ctx.actor)


@routes.post("/repos/{owner}/{repo}/tags", permission="prompts:update", raises=(*_CHANGES, CommitNotFound, Invalid))
async def tag_commit(ctx: Context, owner: str, repo: str, body: TagRequest) -> CommitTag:
    """Put a tag on a commit; it leaves the one that it was on."""
    return await commits.tag_commit(ctx.db, owner, repo, body, by=ctx.actor)


@routes.get(
    "/repos/{owner}/{repo}/tags/{tag_name}", permission="prompts:read", raises=(PromptNotFound, PromptTagNotFound)
)
async def show_prompt_tag(ctx: Context, owner: str, repo: str, tag_name: str) -> CommitTag:
    """Return a tag and the commit that it is on."""
    return await commits.show_tag(ctx.db, owner, repo, tag_name, by=ctx.actor)


@routes.patch(
    "/repos/{owner}/{repo}/tags/{tag_name}",
    permission="prompts:update",
    raises=(*_CHANGES, CommitNotFound, PromptTagNotFound),
)
async def move_prompt_tag(ctx: Context, owner: str, repo: str, tag_name: str, body: TagPatch) -> CommitTag:
    """Put a tag that is there on another commit."""
    await commits.show_tag(ctx.db, owner, repo, tag_name, by=ctx.actor)
    return await commits.tag_commit(ctx.db, owner, repo, TagRequest(tag_name, body.commit_id), by=ctx.actor)


@routes.delete(
    "/repos/{owner}/{repo}/tags/{tag_name}", status=204, permission="prompts:update",
    raises=(*_CHANGES, PromptTagNotFound),
)  # fmt: skip
async def delete_prompt_tag(ctx: Context, owner: str, repo: str, tag_name: str) -> None:
    """Take a tag away; its commit stays."""
    await commits.delete_tag(ctx.db, owner, repo, tag_name, by=ctx.actor)


@routes.get("/commits/{owner}/{repo}", permission="prompts:read", raises=(PromptNotFound,))
@routes.get("/commits/{owner}/{repo}/", permission="prompts:read", raises=(PromptNotFound,))
async def list_commits(ctx: Context, owner: str, repo: str, query: CommitQuery) -> CommitList:
    """List the commits of a prompt, newest first."""
    return await commits.list_commits(ctx.db, owner, repo, query, by=ctx.actor)


@routes.post(
    "/commits/{owner}/{repo}", permission="prompts:update", raises=(*_CHANGES, ParentOutdated, NothingToCommit)
)
async def create_commit(ctx: Context, owner: str, repo: str, body: CommitRequest) -> CommitAnswer:
    """Write a manifest after the latest commit, which `parent_commit` names."""
    return CommitAnswer(await commits.create_commit(ctx.db, owner, repo, body, by=ctx.actor))


@routes.get("/commits/{owner}/{repo}/{commit}", permission="prompts:read", raises=(PromptNotFound, CommitNotFound))
async def pull_commit(ctx: Context, owner: str, repo: str, commit: str, query: PullQuery) -> Manifest:
    """Return the manifest of a commit: by its hash, the beginning of that, a tag or `latest`."""
    address = commits.CommitAddress(owner, repo, commit)
    return await commits.pull_commit(ctx.db, address, include_model=query.include_model, by=ctx.actor)


@routes.post("/likes/{owner}/{repo}", permission="prompts:update", raises=(PromptNotFound,))
async def like_prompt(ctx: Context, owner: str, repo: str, body: LikeRequest) -> Likes:
    """Like a prompt, or not any more; return how many do."""
    return await repos.like_prompt(ctx.db, owner, repo, like=body.like, by=ctx.actor)
