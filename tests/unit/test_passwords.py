"""Passwords are hashed at the cost that OWASP recommends for scrypt; the other tests hash at the least cost."""

from portside.identity import passwords
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
