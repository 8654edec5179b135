"""From the configuration file and the environment to a vault, and the guard that gives each request its context."""

from typing import TYPE_CHECKING, Any

from starlette.authentication import UnauthenticatedUser

from portside.agent.encryption.codec import SealingCodec
from portside.agent.encryption.context import HEADER, read_header, set_context
from portside.agent.encryption.documents import STRUCTURE
from portside.agent.encryption.handlers import Handlers
from portside.agent.encryption.replacing import Replacer
from portside.agent.encryption.vault import ALL_KEYS, Vault
from portside.agent.settings import AgentSettings
from portside.kernel.db import Database
from portside.kernel.errors import Invalid, UserMistake
from portside.kernel.http.headers import header_of
from portside.kernel.http.routes import Context, Guard, Route

if TYPE_CHECKING:
    from portside.agent.encryption.keys import AesKeys

_VARIABLE = "GRAPH_AES_JSON_KEYS"
_HEADER = HEADER.lower().encode()


def make_vault(settings: AgentSettings, encryption: object = None, name: str = "encryption.path") -> Vault | None:
    """Return the vault of a server; None where nothing is to be encrypted. Raises UserMistake.

    Make it on the event loop of the server: that is where the project's handlers are called.
    """
    names = frozenset(part.strip() for part in (settings.graph_aes_json_keys or "").split(",")) - {""}
    keys = _keys(settings.graph_aes_key) if settings.graph_aes_key else None
    handlers = None if encryption is None else Handlers(encryption, name)
    if names and keys is None:
        raise UserMistake(f"{_VARIABLE} names what to encrypt, but there is no key: set GRAPH_AES_KEY")
    if names and handlers is not None and handlers.does_json:
        raise UserMistake(f"{_VARIABLE} and the handler encrypt.json of {name} would both encrypt documents; keep one")
    if ALL_KEYS not in names and (taken := sorted(names & STRUCTURE)):
        raise UserMistake(f"{_VARIABLE} names {', '.join(taken)}, which the server itself looks for; leave it out")
    return None if keys is None and handlers is None else Vault(keys=keys, json_keys=names, handlers=handlers)


def _keys(text: str) -> "AesKeys":
    # Cryptography is loaded where there is a key.
    from portside.agent.encryption.keys import AesKeys

    return AesKeys.parse(text)


def codec_of(vault: Vault | None) -> SealingCodec | None:
    """Return what seals and opens for database sessions; None where there is nothing to do."""
    return None if vault is None else SealingCodec(vault)


def let_replace(db: Database) -> None:
    """Let what handlers want stored anew be stored through a database of the running loop."""
    if isinstance(db.codec, SealingCodec):
        db.codec.replacer = Replacer(db.pool)


def guarded_by(guard: Guard, vault: Vault | None) -> Guard:
    """Return a guard that lets in whom the other one does, and gives the request its encryption context.

    The header is refused where nothing would be done with it.
    """

    async def guarded(ctx: Context, route: Route) -> Any:
        actor = await guard(ctx, route)
        given = header_of(ctx.scope, _HEADER)
        if vault is None or not vault.takes_context:
            if given is not None:
                raise Invalid.field(["header", HEADER], "this server has no encryption handlers that would be given it")
            return actor
        user = getattr(actor, "user", None) or UnauthenticatedUser()
        set_context(await vault.context(user, read_header(given)))
        return actor

    return guarded
