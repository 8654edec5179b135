"""JSON of typed values of this package: `dump_api` writes it, `load` reads any JSON.

Values of a user's graph are written by `kernel/user_json.py`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

dump_api = msgspec.json.Encoder(decimal_format="number").encode
load: Callable[[bytes | str], Any] = msgspec.json.Decoder().decode
