"""Logins that this user keeps in the home folder, one for each platform: a token, and the workspace to act in."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from portside.kernel.files import write_private


class Login(msgspec.Struct, frozen=True):
    """A token that a platform gave for a password, and where it is used unless a command says otherwise."""

    token: str
    expires_at: datetime
    workspace_id: str | None = None


class Logins:
    """The file of logins; whatever cannot be read there is as good as no login."""

    def __init__(self, home: Path) -> None:
        self._file = home / "logins.json"

    def find(self, url: str) -> Login | None:
        """Return the login at a platform, None where there is none or it is over."""
        login = self._read().get(url)
        return login if login is not None and login.expires_at > datetime.now(UTC) else None

    def keep(self, url: str, login: Login | None) -> None:
        """Keep a login, or forget the one that is there."""
        kept = {address: known for address, known in self._read().items() if address != url}
        if login is not None:
            kept[url] = login
        self._write(kept)

    def _read(self) -> dict[str, Login]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Login])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _write(self, logins: Mapping[str, Login]) -> None:
        write_private(self._file, json.dumps(msgspec.to_builtins(logins), indent=2) + "\n")
