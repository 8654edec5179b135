"""The settings that operators see: no secret, and no new text setting that nobody allowed yet."""

import msgspec

from portside.platform.settings import PlatformSettings
from portside.platform.system import SHOWN, list_settings_in_force

SECRETS = {"database_url", "api_key", "oidc_client_secret", "backup_passphrase", "smtp_password"}


def test_secrets_have_no_value() -> None:
    settings = PlatformSettings(
        database_url="postgresql://me:s3cret@db/x",
        api_key="lsv2_pt_s3cret",
        oidc_client_secret="s3cret",
        backup_passphrase="s3cret",
        smtp_password="s3cret",
    )

    found = list_settings_in_force(settings)
    assert "s3cret" not in msgspec.json.encode(found).decode()
    hidden = {each.name for each in found if each.is_hidden}

    assert hidden == {
        "DATABASE_URL",
        "PORTSIDE_API_KEY",
        "OIDC_CLIENT_SECRET",
        "PORTSIDE_BACKUP_PASSPHRASE",
        "SMTP_PASSWORD",
    }

    assert all(each.is_set for each in found if each.is_hidden)


def test_every_setting_is_listed_and_changes_are_marked() -> None:
    found = {each.name: each for each in list_settings_in_force(PlatformSettings(port=9000, log_json=True))}
    assert len(found) == len(msgspec.structs.fields(PlatformSettings))
    assert (found["PORTSIDE_PORT"].value, found["PORTSIDE_PORT"].is_default) == (9000, False)
    assert (found["LOG_JSON"].value, found["LOG_JSON"].is_default) == (True, False)
    assert (found["PORTSIDE_REGION"].value, found["PORTSIDE_REGION"].is_default) == ("us", True)
    assert found["DATABASE_URL"].is_set is False


def test_shown_names_settings_that_are_no_secrets() -> None:
    names = {field.name for field in msgspec.structs.fields(PlatformSettings)}
    assert names - SECRETS >= SHOWN
