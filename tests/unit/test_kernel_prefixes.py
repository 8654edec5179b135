from typing import Any

import pytest

from portside.kernel.errors import NotFound
from portside.kernel.http.prefixes import MountBelow


async def seen_path(path: str, kind: str = "http") -> Any:
    seen: list[Any] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["path"])

    async def send(message: Any) -> None:
        seen.append(message["type"])

    await MountBelow(app, "/my/api", frozenset({"/ok"}))({"type": kind, "path": path}, None, send)
    return seen


@pytest.mark.parametrize(
    ("path", "inner"),
    [("/my/api/threads", "/threads"), ("/my/api", "/"), ("/my/api/", "/"), ("/ok", "/ok"), ("/my/api/ok", "/ok")],
)
async def test_everything_is_below_the_prefix(path: str, inner: str) -> None:
    assert await seen_path(path) == [inner]


@pytest.mark.parametrize("path", ["/", "/threads", "/my", "/my/apix", "/my/api2/threads", "/ok/", "/info"])
async def test_nothing_is_elsewhere(path: str) -> None:
    with pytest.raises(NotFound):
        await seen_path(path)
    assert await seen_path(path, "websocket") == ["websocket.close"]
