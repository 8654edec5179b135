"""Following a thread (contract: section 12.4)."""

import msgspec


class ThreadStreamQuery(msgspec.Struct):
    """Which events of a thread to follow; clients spell the parameter in two ways."""

    stream_modes: list[str] | None = None
    stream_mode: list[str] | None = None
