"""Which values are large: by their texts, measured as far as that is quick."""

from typing import Any

import pytest

from portside.kernel.value_sizes import LARGE_BYTES, MEASURED_PARTS, has_long_text

HALF = "x" * (LARGE_BYTES // 2)


@pytest.mark.parametrize(
    ("value", "is_large"),
    [
        (None, False),
        ({"input": "x" * LARGE_BYTES}, False),
        ({"input": "x" * (LARGE_BYTES + 1)}, True),
        ([{"content": HALF}, {"content": [{"image": HALF + "x"}]}], True),
        ([b"x" * (LARGE_BYTES + 1), 1, 2.5, True], True),
        (["x" * (LARGE_BYTES + 1), *[0] * MEASURED_PARTS], False),
    ],
)
def test_texts_are_added_up(value: Any, *, is_large: bool):
    assert has_long_text(value) is is_large
