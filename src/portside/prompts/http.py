"""The routes of prompts, and of the files of agents and skills. Clients end lists with a slash: both are routes."""

from starlette.responses import Response

from portside.kernel.errors import Invalid
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.routes import BaseServices, Context, Routes
from portside.prompts import directories, repos
from portside.prompts.types import (
    CommitList,
    CommitNotFound,
    CommitQuery,
    CommitRequest,
    CommitResponse,
    CommitTag,
    CommitTagRequest,
    Directory,
    DirectoryCommitRequest,
    DirectoryDeletion,
    DirectoryQuery,
    HoldsFiles,
    HoldsNoFiles,
    LikeRequest,
    Likes,
    Manifest,
    NothingToCommit,
    ParentOutdated,
    PromptExists,
    PromptList,
    PromptNotFound,
    PromptOfOthers,
    PromptPatch,
    PromptQuery,
    PromptRequest,
    PromptResponse,
    PromptTagNotFound,
    PullQuery,
    Settings,
    TagPatch,
)

routes = Routes[Context[BaseServices]]("prompts")
_CHANGES = (PromptNotFound, PromptOfOthers)


@routes.get("/settings", permission="prompts:read")
async def get_settings(ctx: Context[BaseServices]) -> Settings:
    """Return the workspace of the API key, and its handle, which is the owner of its prompts."""
    return await repos.get_settings(ctx.db, by=ctx.actor)


@routes.get("/repos/", "/repos", permission="prompts:read")
async def list_prompts(ctx: Context[BaseServices], query: PromptQuery) -> PromptList:
    """List the prompts of the workspace, or its agents or skills, last changed first unless the query sorts them."""
    return await repos.list_prompts(ctx.db, query, by=ctx.actor)


@routes.post(
    "/repos/",
    "/repos",
    permission="prompts:create",
    raises=(PromptExists, Invalid),
    audit=Action("prompt.create", id_query="create_repo"),
)
async def create_prompt(ctx: Context[BaseServices], body: PromptRequest) -> PromptResponse:
    """Create a prompt, an agent or a skill without commits."""
    return PromptResponse(await repos.create_prompt(ctx.db, body, by=ctx.actor))


@routes.get("/repos/{owner}/{repo}", permission="prompts:read", raises=(PromptNotFound,))
async def get_prompt(ctx: Context[BaseServices], owner: str, repo: str) -> PromptResponse:
    """Return a prompt; the owner `-` is the caller's own workspace."""
    return PromptResponse(await repos.get_prompt(ctx.db, owner, repo, by=ctx.actor))


@routes.patch("/repos/{owner}/{repo}", permission="prompts:update", raises=_CHANGES, audit=Action("prompt.update"))
async def update_prompt(ctx: Context[BaseServices], owner: str, repo: str, body: PromptPatch) -> PromptResponse:
    """Change the description of a prompt; null leaves a field unchanged."""
    return PromptResponse(await repos.update_prompt(ctx.db, owner, repo, body, by=ctx.actor))


@routes.delete("/repos/{owner}/{repo}", permission="prompts:delete", raises=_CHANGES, audit=Action("prompt.delete"))
async def delete_prompt(ctx: Context[BaseServices], owner: str, repo: str) -> Response:
    """Delete a prompt with all its commits and tags."""
    await repos.delete_prompt(ctx.db, owner, repo, by=ctx.actor)
    return Response(b"{}", media_type="application/json")


@routes.get("/repos/{owner}/{repo}/tags", permission="prompts:read", raises=(PromptNotFound,))
async def list_prompt_tags(ctx: Context[BaseServices], owner: str, repo: str) -> list[CommitTag]:
    """List the tags on the commits of a prompt."""
    return await repos.list_tags(ctx.db, owner, repo, by=ctx.actor)


@routes.post(
    "/repos/{owner}/{repo}/tags",
    permission="prompts:update",
    raises=(*_CHANGES, CommitNotFound, Invalid),
    audit=Action("prompt.tag"),
)
async def tag_commit(ctx: Context[BaseServices], owner: str, repo: str, body: CommitTagRequest) -> CommitTag:
    """Tag a commit; the tag leaves its previous commit."""
    return await repos.tag_commit(ctx.db, owner, repo, body, by=ctx.actor)


@routes.get(
    "/repos/{owner}/{repo}/tags/{tag_name}", permission="prompts:read", raises=(PromptNotFound, PromptTagNotFound)
)
async def get_prompt_tag(ctx: Context[BaseServices], owner: str, repo: str, tag_name: str) -> CommitTag:
    """Return a tag and its commit."""
    return await repos.get_tag(ctx.db, owner, repo, tag_name, by=ctx.actor)


@routes.patch(
    "/repos/{owner}/{repo}/tags/{tag_name}",
    permission="prompts:update",
    raises=(*_CHANGES, CommitNotFound, PromptTagNotFound),
    audit=Action("prompt.tag"),
)
async def move_prompt_tag(
    ctx: Context[BaseServices], owner: str, repo: str, tag_name: str, body: TagPatch
) -> CommitTag:
    """Move an existing tag to another commit."""
    await repos.get_tag(ctx.db, owner, repo, tag_name, by=ctx.actor)
    return await repos.tag_commit(ctx.db, owner, repo, CommitTagRequest(tag_name, body.commit_id), by=ctx.actor)


@routes.delete(
    "/repos/{owner}/{repo}/tags/{tag_name}",
    status=204,
    permission="prompts:update",
    raises=(*_CHANGES, PromptTagNotFound),
    audit=Action("prompt.untag"),
)
async def delete_prompt_tag(ctx: Context[BaseServices], owner: str, repo: str, tag_name: str) -> None:
    """Delete a tag; its commit stays."""
    await repos.delete_tag(ctx.db, owner, repo, tag_name, by=ctx.actor)


@routes.get("/commits/{owner}/{repo}/", "/commits/{owner}/{repo}", permission="prompts:read", raises=(PromptNotFound,))
async def list_commits(ctx: Context[BaseServices], owner: str, repo: str, query: CommitQuery) -> CommitList:
    """List the commits of a prompt, newest first."""
    return await repos.list_commits(ctx.db, owner, repo, query, by=ctx.actor)


@routes.post(
    "/commits/{owner}/{repo}",
    permission="prompts:update",
    raises=(*_CHANGES, HoldsFiles, ParentOutdated, NothingToCommit),
    audit=Action("prompt.commit"),
)
async def create_commit(ctx: Context[BaseServices], owner: str, repo: str, body: CommitRequest) -> CommitResponse:
    """Append a commit; `parent_commit` must be the latest one."""
    return CommitResponse(await repos.create_commit(ctx.db, owner, repo, body, by=ctx.actor))


@routes.get("/commits/{owner}/{repo}/{commit}", permission="prompts:read", raises=(PromptNotFound, CommitNotFound))
async def pull_commit(ctx: Context[BaseServices], owner: str, repo: str, commit: str, query: PullQuery) -> Manifest:
    """Return the manifest of a commit by its hash, the beginning of the hash, a tag or `latest`."""
    address = repos.CommitAddress(owner, repo, commit)
    return await repos.pull_commit(ctx.db, address, include_model=query.include_model, by=ctx.actor)


@routes.post(
    "/likes/{owner}/{repo}", permission="prompts:update", raises=(PromptNotFound,), audit=Action("prompt.like")
)
async def like_prompt(ctx: Context[BaseServices], owner: str, repo: str, body: LikeRequest) -> Likes:
    """Like a prompt or withdraw the like; return the number of likes."""
    return await repos.like_prompt(ctx.db, owner, repo, like=body.like, by=ctx.actor)


@routes.get(
    "/platform/hub/repos/{owner}/{repo}/directories",
    "/v1/platform/hub/repos/{owner}/{repo}/directories",
    permission="prompts:read",
    raises=(PromptNotFound, CommitNotFound),
)
async def pull_directory(ctx: Context[BaseServices], owner: str, repo: str, query: DirectoryQuery) -> Directory:
    """Return the files of an agent or a skill at a commit, by default the latest one."""
    return await directories.pull_files(ctx.db, owner, repo, query, by=ctx.actor)


@routes.post(
    "/platform/hub/repos/{owner}/{repo}/directories/commits",
    "/v1/platform/hub/repos/{owner}/{repo}/directories/commits",
    permission="prompts:update",
    raises=(*_CHANGES, HoldsNoFiles, ParentOutdated, Invalid),
    audit=Action("prompt.commit"),
)
async def commit_directory(
    ctx: Context[BaseServices], owner: str, repo: str, body: DirectoryCommitRequest
) -> CommitResponse:
    """Write and remove files of an agent or a skill in one commit; the other files stay."""
    return CommitResponse(await directories.commit_files(ctx.db, owner, repo, body, by=ctx.actor))


@routes.delete(
    "/platform/hub/repos/{owner}/{repo}/directories",
    "/v1/platform/hub/repos/{owner}/{repo}/directories",
    status=204,
    permission="prompts:delete",
    raises=_CHANGES,
    audit=Action("prompt.delete"),
)
async def delete_directory(ctx: Context[BaseServices], owner: str, repo: str, query: DirectoryDeletion) -> None:
    """Delete an agent or a skill with all its commits and tags."""
    await directories.delete_directory(ctx.db, owner, repo, query.repo_type, by=ctx.actor)
