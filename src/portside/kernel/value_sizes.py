"""Which values are large: so large that what is done together with them takes noticeably longer.

Large values are kept apart from small ones, in statements, batches and processes of their own, so that others wait for
them as little as possible.
"""

from typing import Any

LARGE_BYTES = 1_000_000
# A value with more parts is not measured further: it would take as long as what is done with it.
MEASURED_PARTS = 1000


def has_long_text(value: Any) -> bool:
    """Whether the texts in plain data are larger than LARGE_BYTES together, as far as they are measured."""
    size = 0
    remaining = [value]
    for _ in range(MEASURED_PARTS):
        if not remaining or size > LARGE_BYTES:
            break

        part = remaining.pop()
        if isinstance(part, str | bytes):
            size += len(part)
        elif isinstance(part, dict):
            remaining.extend(part.values())
        elif isinstance(part, list):
            remaining.extend(part)

    return size > LARGE_BYTES
