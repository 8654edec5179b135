"""What a platform finds, or misses, in its home folder."""

import os
import stat

import pytest

from portside.kernel.errors import UserMistake
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.settings import PlatformSettings


async def test_keys_are_kept_private_and_a_lost_master_key_is_refused(fresh_database, tmp_path):
    url, home, settings = await fresh_database(), Home(tmp_path), PlatformSettings()
    async with open_platform(home, settings, url) as first:
        assert first.new_key == home.api_key.read_text().strip()
    for file in (home.api_key, home.listener_key, home.master_key):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with open_platform(home, settings, url) as second:
        assert second.new_key is None
        assert second.listener_key == first.listener_key
    home.master_key.unlink()
    with pytest.raises(UserMistake, match="master-key is missing"):
        async with open_platform(home, settings, url):
            pass
    assert not home.master_key.exists()


def test_a_home_belongs_to_one_platform(tmp_path):
    first = Home(tmp_path)
    first.lock()
    with pytest.raises(UserMistake, match=f"process {os.getpid()}"):
        Home(tmp_path).lock()
