"""The logins of this user, one for each platform, in a private file of the user's configuration folder."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from portside.kernel.files import make_private_dir, write_private


class Login(msgspec.Struct, frozen=True):
    """A token of a login, and the workspace that commands use by default."""

    token: str
    expires_at: datetime
    workspace_id: str | None = None


class Logins:
    """The logins of this user, one per platform, in a private file; an unreadable file counts as empty."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "logins.json"

    def find(self, url: str) -> Login | None:
        """Return the login at a platform, or None if there is none or it has expired."""
        login = self._read().get(normalize_url(url))
        return login if login is not None and login.expires_at > datetime.now(UTC) else None

    def keep(self, url: str, login: Login | None) -> None:
        """Store the login at a platform; None deletes it."""
        logins = self._read()
        if login is not None:
            logins[normalize_url(url)] = login
        else:
            logins.pop(normalize_url(url), None)

        self._write(logins)

    def _read(self) -> dict[str, Login]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Login])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _write(self, logins: Mapping[str, Login]) -> None:
        make_private_dir(self._file.parent)
        write_private(self._file, json.dumps(msgspec.to_builtins(logins), indent=2) + "\n")


def open_user_logins() -> Logins:
    """Return the logins of the user who runs the command."""
    return Logins(Path(click.get_app_dir("portside")))


def normalize_url(url: str) -> str:
    """Return a platform's address in the form in which logins are stored."""
    parts = urlsplit(url)
    return parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower()).geturl().rstrip("/")
