"""Who may call the agent, and what each user sees: their own threads and their own part of the store."""

from langgraph_sdk import Auth

# Stands for your identity provider. A real handler verifies a token here, for example a JSON Web Token.
USERS = {"token-of-ada": "ada", "token-of-bob": "bob"}

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> Auth.types.MinimalUserDict:
    """Return the user of a request, from its header `Authorization: Bearer …`."""
    user = USERS.get((authorization or "").removeprefix("Bearer "))
    if user is None:
        raise Auth.exceptions.HTTPException(status_code=401, detail="The token is not valid.")

    return {"identity": user}


@auth.on
async def allow_own(ctx: Auth.types.AuthContext, value: dict) -> Auth.types.FilterType:
    """Write the owner to whatever a user creates, and show only what they own."""
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on.store
async def use_own_namespace(ctx: Auth.types.AuthContext, value: dict) -> None:
    """Put the user before each namespace, so that nobody can name that of another user."""
    value["namespace"] = (ctx.user.identity, *(value["namespace"] or ()))
