"""Passwords are hashed at the cost that OWASP recommends for scrypt; the other tests hash at the least cost."""

import pytest

from portside.identity import passwords
from portside.identity.oidc import OidcClient
from portside.identity.signin import PasswordForm
from portside.identity.types import Credentials
from tests.conftest import PASSWORD_COST


def test_the_cost_of_a_password() -> None:
    assert PASSWORD_COST == {"n": 2**16, "r": 8, "p": 1}
    assert 128 * PASSWORD_COST["n"] * PASSWORD_COST["r"] < passwords._MEMORY_BYTES


async def test_a_password_has_a_salt_and_matches_only_itself() -> None:
    first = await passwords.hash_password("correct horse battery")
    second = await passwords.hash_password("correct horse battery")

    assert first != second
    assert await passwords.verify_password("correct horse battery", first)
    assert not await passwords.verify_password("correct horse batterY", first)
    assert not await passwords.verify_password("correct horse battery", None)


async def test_unknown_user_costs_as_much_as_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time of an answer says which addresses have an account."""
    derived: list[str] = []
    derive = passwords._derive

    def count(password: str, salt: bytes) -> bytes:
        derived.append(password)
        return derive(password, salt)

    stored = await passwords.hash_password("correct horse battery")
    monkeypatch.setattr(passwords, "_derive", count)
    for known in (stored, None):
        assert not await passwords.verify_password("wrong", known)

    assert derived == ["wrong", "wrong"]


def test_text_of_a_request_with_a_secret_does_not_show_it() -> None:
    for value in (
        Credentials("ann@example.com", "hunter2"),
        PasswordForm("ann@example.com", "hunter2"),
        OidcClient("https://provider.example", "portside", "hunter2"),
    ):
        assert "hunter2" not in repr(value)
