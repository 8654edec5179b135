"""Opening documents: all envelopes in one, however deep, with one call of the handler for each object that has some."""

import asyncio
import json
from typing import Any, NamedTuple

from portside.agent.encryption.envelopes import MARK, handler_envelope, is_envelope
from portside.agent.encryption.errors import CannotDecrypt
from portside.agent.encryption.handlers import Place
from portside.agent.encryption.vault import Vault

Json = dict[str, Any]
Path = tuple[str, ...]
_DAMAGED = "A document holds an envelope that is damaged"


class Replaced(NamedTuple):
    """What a handler wants stored in another form: where in the document it is, what is there, and what should be."""

    path: Path
    old: Json
    new: Json


class _Group(NamedTuple):
    """Keys of one object that were sealed in one context."""

    place: Place
    context: Json
    opened: Json
    siblings: Json
    sealed: dict[str, Json]
    path: Path


async def open_document(vault: Vault, stored: Any) -> tuple[Any, list[Replaced]]:
    """Return a document as it was, and what is to be stored instead of some of it. Raises CannotDecrypt."""
    opening = _Opening(vault)
    # A document may be one envelope: a state that is no object.
    opened = opening.walk({"": stored}, ())
    await asyncio.gather(*(opening.ask(group) for group in opening.groups.values()))
    return opened[""], [one._replace(path=one.path[1:]) for one in opening.replaced]


class _Opening:
    """One document while it is opened: what handlers have to be asked for, and where the answers go."""

    def __init__(self, vault: Vault) -> None:
        self.replaced: list[Replaced] = []
        self.groups: dict[tuple[int, str], _Group] = {}
        self._vault = vault

    def walk(self, value: Any, path: Path) -> Any:
        """Return a copy in which all is open but what handlers sealed."""
        if isinstance(value, list):
            return [self._item(part, (*path, str(place))) for place, part in enumerate(value)]
        if not isinstance(value, dict):
            return value
        opened: Json = {}
        for key, part in value.items():
            if is_envelope(part):
                self._open(opened, value, key, path)
            else:
                opened[key] = self.walk(part, (*path, key))
        return opened

    def _item(self, part: Any, path: Path) -> Any:
        return self.walk({"": part}, path)[""] if is_envelope(part) else self.walk(part, path)

    def _open(self, opened: Json, siblings: Json, key: str, path: Path) -> None:
        told = siblings[key][MARK]
        if not isinstance(told, dict):
            raise CannotDecrypt(_DAMAGED)
        if "plain" in told:
            opened[key] = {MARK: self.walk({"": told["plain"]}, (*path, key))[""]}
        elif "aes" in told:
            opened[key] = self._vault.open_aes(told)
        elif isinstance(told.get("of"), str) and "." in told["of"] and "value" in told:
            # The key is there already, so that keys stay in their order.
            opened[key] = None
            context = told.get("context") or {}
            name = (id(opened), json.dumps([told["of"], context], sort_keys=True))
            group = _Group(Place.named(told["of"]), context, opened, siblings, {}, path)
            self.groups.setdefault(name, group).sealed[key] = siblings[key]
        else:
            raise CannotDecrypt(_DAMAGED)

    async def ask(self, group: _Group) -> None:
        """Have a handler open some keys of an object, which it is shown with what is in clear beside them."""
        sealed = {key: envelope[MARK]["value"] for key, envelope in group.sealed.items()}
        clear = {key: part for key, part in group.siblings.items() if not is_envelope(part)}
        answer = await self._vault.ask_handler(group.place, group.context, clear | sealed)
        for key, envelope in group.sealed.items():
            group.opened[key] = answer.plain[key]
            new = (answer.replacement or {}).get(key, sealed[key])
            if new != sealed[key]:
                self.replaced.append(
                    Replaced((*group.path, key), envelope, handler_envelope(new, group.place, group.context))
                )
