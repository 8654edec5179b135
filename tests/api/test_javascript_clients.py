"""The stock clients work with graphs in JavaScript as they do with graphs in Python: the same tests, other graphs."""

from collections.abc import Iterator

import pytest

from tests.api.test_sdk_javascript import (  # noqa: F401 - the tests of this module, with its server
    packages,
    test_every_method_of_the_client,
    test_the_hook_for_web_pages,
)
from tests.api.test_sdk_python import *  # noqa: F403 - the tests of this module, with its server
from tests.javascript import javascript_server
from tests.servers import ServerProcess

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with javascript_server(module_database, tmp_path_factory.mktemp("javascript")) as running:
        yield running
