"""Authentication by tokens that are names; everybody sees what is theirs, and what they were let into."""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from langgraph_sdk import Auth

auth = Auth()


@dataclass
class Person:
    identity: str
    email: str
    permissions: list[str] = field(default_factory=list)
    is_authenticated: bool = True


@auth.authenticate
async def authenticate(
    authorization: str | None, headers: dict[bytes, bytes], path: str, method: str, path_params: dict[str, str]
) -> Any:
    token = (authorization or "").removeprefix("Bearer ")
    if not token:
        raise Auth.exceptions.HTTPException(detail="Who are you?", headers={"WWW-Authenticate": "Bearer"})

    assert token != "unwanted", "a word of the inside"
    if token == "banned":
        raise Auth.exceptions.HTTPException(status_code=403, detail="Not you.")
    if token == "crash":
        raise RuntimeError("a word of the inside")

    if token == "endless":
        await asyncio.sleep(600)

    if token == "nobody":
        return {"name": "without an identity"}
    if token == "echo":
        raise Auth.exceptions.HTTPException(detail=f"{method} {path} {path_params} {headers[b'x-note'].decode()}")
    if token == "operator":
        return {"identity": "operator", "permissions": ["deployments:update"]}

    if token == "carol":
        return Person("carol", "carol@example.test")

    return {"identity": token, "email": f"{token}@example.test", "permissions": [f"be:{token}"]}


def unless_without(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Let a token such as `without threads.read` do everything but that action; others ask the handler."""

    @functools.wraps(handler)
    async def decide(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        if not ctx.user.identity.startswith("without "):
            return await handler(ctx=ctx, value=value)

        event = f"{ctx.resource}.{ctx.action}"
        if ctx.user.identity == f"without {event}":
            raise Auth.exceptions.HTTPException(status_code=403, detail=f"Without {event}.")

        return True

    return decide


@auth.on
@unless_without
async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
    """Let people see what is theirs, and what names them as a member."""
    if ctx.user.identity == "nosy":
        return {"$or": "everything"}
    if wanted := filter_in_token(ctx):
        return wanted

    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"$or": [{"owner": ctx.user.identity}, {"members": {"$contains": ctx.user.identity}}]}


@auth.on.threads.search
@unless_without
async def search(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
    return {"$or": [{"owner": ctx.user.identity}, {"members": {"$contains": [ctx.user.identity]}}]}


@auth.on.crons.search
@auth.on.assistants.search
@unless_without
async def search_others(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
    return filter_in_token(ctx) or {"owner": ctx.user.identity}


def filter_in_token(ctx: Auth.types.AuthContext) -> dict[str, Any] | None:
    """Return the filter that the token itself is, so that tests can try any."""
    return json.loads(ctx.user.identity) if ctx.user.identity.startswith("{") else None


@auth.on.threads.delete
@unless_without
async def delete(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
    return False if ctx.user.identity == "reader" else {"owner": {"$eq": ctx.user.identity}}


@auth.on.threads.update
@unless_without
async def update(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
    if ctx.user.identity == "reader":
        raise Auth.exceptions.HTTPException(status_code=403, detail="Readers read.")
    return {"owner": ctx.user.identity}


@auth.on.store
@unless_without
async def scope(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
    assert isinstance(value["namespace"], tuple)
    if (given := filter_in_token(ctx)) is not None:
        return given

    value["namespace"] = (ctx.user["identity"], *value["namespace"])
    return None
