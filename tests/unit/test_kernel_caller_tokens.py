"""Caller tokens: how long they are valid, with which keys, and for which server."""

from types import SimpleNamespace

import pytest

from portside.kernel import caller_tokens
from portside.kernel.caller_tokens import CallerClaims, InvalidToken, TokenIssuer, verify

MIDNIGHT = 20_000 * 86_400
NEW_KEY = b"n" * 32
OLD_KEY = b"o" * 32


def sign(at: int, *, lives_s: int = 60, audience: str = "agent", key: bytes = NEW_KEY) -> str:
    return TokenIssuer([key]).sign(CallerClaims(aud=audience, sub="ann", iat=at, exp=at + lives_s))


def verify_at(monkeypatch: pytest.MonkeyPatch, now: float, token: str, *, audience: str = "agent") -> CallerClaims:
    """Verify a token at a time, with the keys that the platform publishes then."""
    monkeypatch.setattr(caller_tokens, "time", SimpleNamespace(time=lambda: now))
    keys = {key.kid: key for key in TokenIssuer([NEW_KEY, OLD_KEY]).public_keys(audience).keys}
    return verify(token, keys, audience)


@pytest.mark.parametrize(
    ("issued_at", "now"),
    [
        (MIDNIGHT + 1000, MIDNIGHT + 1000),
        (MIDNIGHT + 1000, MIDNIGHT + 1059.9),
        # Keys change at midnight, and the two clocks may differ.
        (MIDNIGHT - 30, MIDNIGHT + 20),
        (MIDNIGHT + 2, MIDNIGHT - 2),
    ],
)
@pytest.mark.parametrize("key", [NEW_KEY, OLD_KEY], ids=["new key", "old key"])
def test_token_is_valid_for_a_minute_also_over_midnight(
    monkeypatch: pytest.MonkeyPatch, issued_at: int, now: float, key: bytes
) -> None:
    assert verify_at(monkeypatch, now, sign(issued_at, key=key)).sub == "ann"


@pytest.mark.parametrize(
    ("token", "now", "reason"),
    [
        (sign(MIDNIGHT), MIDNIGHT + 60, "it has expired"),
        (sign(MIDNIGHT, lives_s=61), MIDNIGHT, "more than a minute"),
        (sign(MIDNIGHT + 6), MIDNIGHT, "more than a minute"),
        (sign(MIDNIGHT, audience="another"), MIDNIGHT, "for another deployment"),
        (sign(MIDNIGHT, key=b"f" * 32), MIDNIGHT, "not signed by this platform"),
        (sign(MIDNIGHT - 86_400), MIDNIGHT + 86_400, "not signed by this platform"),
    ],
)
def test_any_other_token_is_refused(monkeypatch: pytest.MonkeyPatch, token: str, now: int, reason: str) -> None:
    with pytest.raises(InvalidToken, match=reason):
        verify_at(monkeypatch, now, token)
