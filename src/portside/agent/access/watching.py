"""Following what is not there yet: once a thread appears, what it tells is for those alone who may see it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple


class Watch(NamedTuple):
    """A look at a thread that is taken before the first of it is told; None where none is needed."""

    look: Callable[[], Awaitable[bool | None]] | None = None

    def over(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pass on what is told, or end without a word where the thread turns out to be somebody else's."""
        return source if self.look is None else _looked_at(source, self.look)

    async def is_seen(self) -> bool:
        """Whether what the thread tells may be passed on."""
        return self.look is None or bool(await self.look())


UNWATCHED = Watch()


async def _looked_at(source: AsyncIterator[bytes], look: Callable[[], Awaitable[bool | None]]) -> AsyncIterator[bytes]:
    is_seen = False
    try:
        async for chunk in source:
            is_seen = is_seen or bool(await look())
            if not is_seen:
                return
            yield chunk
    finally:
        if (close := getattr(source, "aclose", None)) is not None:
            await close()
