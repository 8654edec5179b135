"""Features that need newer libraries name the library and the version."""

import importlib.metadata

import pytest

from portside.executor import versions
from portside.executor.versions import Feature, list_missing_features
from portside.kernel.errors import UserMistake


@pytest.mark.parametrize(
    ("installed", "is_there"),
    [
        ("1.2.3", True),
        ("1.2.10", True),
        ("1.3", True),
        ("2.0.0rc1", True),
        ("1.2.2", False),
        ("1.2", False),
        ("0.9.9", False),
    ],
)
def test_a_version_is_new_enough(monkeypatch: pytest.MonkeyPatch, installed: str, *, is_there: bool) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: installed)
    feature = Feature("flying", "wings", (1, 2, 3))
    assert feature.is_available is is_there

    if not is_there:
        with pytest.raises(
            UserMistake, match=f"flying needs wings 1.2.3 or newer; installed is {installed}; raise the version"
        ):
            feature.require()


def test_old_libraries_are_named_once_with_what_they_lack() -> None:
    old = {"langgraph-sdk": "0.2.0", "langgraph": "1.2.22"}
    assert [line.partition(" needs ")[0] for line in list_missing_features(old)] == [
        versions.ENCRYPTION.name,
        versions.SERVER_RUNTIME.name,
        versions.CACHE.name,
    ]

    assert "encryption.path needs langgraph-sdk 0.2.14 or newer; installed is 0.2.0" in list_missing_features(old)
