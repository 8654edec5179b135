"""The settings of request bodies, which the agent server and the platform have alike."""

from typing import Annotated

import msgspec

from portside.kernel.settings import setting

MAX_BYTES = 25_000_000
MAX_VALUES = 500_000
WITHIN_S = 120.0

MaxBodyBytes = Annotated[
    int, msgspec.Meta(ge=1024), setting("Maximum size of a request body in bytes; larger ones get 413.")
]
MaxBodyValues = Annotated[
    int,
    msgspec.Meta(ge=1000, le=25_000_000),
    setting(
        "Maximum number of values in a JSON body: texts, numbers, lists and objects at all levels; more get 413. "
        "While the server decodes a million values, it answers nothing else for up to a second."
    ),
]
BodySeconds = Annotated[
    float,
    msgspec.Meta(gt=0, le=86_400),
    setting("Seconds for the body of a request to arrive, plus one for each 8 KB; a slower one gets 408."),
]
