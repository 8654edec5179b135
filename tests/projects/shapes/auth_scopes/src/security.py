from langgraph_sdk import Auth

auth = Auth()
TOKENS = {"token-of-ada": {"identity": "ada", "is_authenticated": True}}


@auth.authenticate
async def authenticate(authorization: str | None) -> tuple[list[str], dict]:
    token = (authorization or "").removeprefix("Bearer ")
    if token not in TOKENS:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Invalid token")

    return ["threads:read"], TOKENS[token]


@auth.on
async def only_own(ctx: Auth.types.AuthContext, value: dict) -> dict:
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on.assistants
async def everybody_finds_assistants(ctx: Auth.types.AuthContext, value: dict) -> bool:
    return True
