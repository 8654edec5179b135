"""Files that a client downloads while the server writes them."""

from collections.abc import AsyncIterator
from typing import TypeVar

from starlette.responses import StreamingResponse

from portside.kernel.large_reads import start_streaming

Text = TypeVar("Text", str, bytes)


async def download(pieces: AsyncIterator[Text], name: str, media_type: str) -> StreamingResponse:
    """Return the response that sends a file in pieces.

    The first piece is made here, so that an error before it becomes a response instead of a file that ends too early.
    Reads no longer count as a part of one response from now on, because a file has no limit of size.
    """
    start_streaming()
    first = await anext(pieces, None)

    async def all_pieces() -> AsyncIterator[Text]:
        if first is not None:
            yield first

        async for piece in pieces:
            yield piece

    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(all_pieces(), headers=headers, media_type=media_type)
