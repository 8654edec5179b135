"""Settings are read from the environment and options; errors name a setting but never show its value."""

from typing import Annotated

import msgspec
import pytest

from portside.kernel.errors import UserMistake
from portside.kernel.settings import describe, load_settings, setting


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    url: Annotated[str, setting("Where to.", "SERVICE_URL", "OLD_URL")]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535), setting("Port.")] = 80
    is_quiet: Annotated[bool, setting("Say little.")] = False
    note: Annotated[str | None, setting("Anything.")] = None


GOOD = {"SERVICE_URL": "u"}


def test_first_name_that_is_set_wins() -> None:
    assert load_settings(Settings, {"OLD_URL": "old", "PORT": "8080"}) == Settings(url="old", port=8080)
    assert load_settings(Settings, {"OLD_URL": "old", "SERVICE_URL": "new"}).url == "new"
    assert load_settings(Settings, {"OLD_URL": "old", "SERVICE_URL": ""}).url == "old", "empty is as good as not set"


def test_overrides_win_unless_they_are_none() -> None:
    assert load_settings(Settings, GOOD | {"PORT": "1"}, port=2, note=None) == Settings(url="u", port=2)


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("true", True), ("On", True), ("no", False), ("FALSE", False)]
)
def test_booleans_are_parsed(text: str, value: bool) -> None:  # noqa: FBT001
    assert load_settings(Settings, GOOD | {"IS_QUIET": text}).is_quiet is value


def test_text_setting_is_not_parsed_as_boolean() -> None:
    assert load_settings(Settings, GOOD | {"NOTE": "on"}).note == "on"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (GOOD | {"PORT": "ninety"}, "setting PORT: Expected `int`"),
        (GOOD | {"PORT": "70000"}, "setting PORT: Expected `int` <= 65535"),
        (GOOD | {"IS_QUIET": "maybe"}, "setting IS_QUIET: Expected `bool`"),
        ({}, "setting SERVICE_URL: not set, and there is no default"),
    ],
)
def test_invalid_or_missing_setting_is_named(environ, message) -> None:
    with pytest.raises(UserMistake) as raised:
        load_settings(Settings, environ)
    assert str(raised.value).startswith(message)


def test_options_of_the_command_line_are_named_as_the_user_typed_them() -> None:
    class Options(msgspec.Struct):
        tls_key: Annotated[str, msgspec.Meta(pattern="^[a-z]+$"), setting("The key: letters.", "MY_KEY")] = "a"

    for given, named in (({"tls_key": "1"}, "--tls-key"), ({}, "setting MY_KEY")):
        with pytest.raises(UserMistake) as raised:
            load_settings(Options, {"MY_KEY": "2"}, **given)
        assert str(raised.value) == f"{named}: this value does not have the right form. The key: letters."


def test_error_does_not_contain_the_invalid_value() -> None:
    with pytest.raises(UserMistake) as raised:
        load_settings(Settings, GOOD | {"PORT": "hunter2"})
    assert "hunter2" not in str(raised.value)


def test_describe_lists_all_settings() -> None:
    url, port, *_ = describe(Settings)
    assert (url.names, url.type, url.default, url.description) == (("SERVICE_URL", "OLD_URL"), "str", None, "Where to.")
    assert (port.names, port.type, port.default) == (("PORT",), "int", 80)


def test_undocumented_setting_is_refused() -> None:
    class Silent(msgspec.Struct):
        port: int = 80

    with pytest.raises(TypeError, match=r"Silent\.port is not documented"):
        load_settings(Silent, {})
