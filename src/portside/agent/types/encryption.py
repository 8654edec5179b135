"""The sections of the configuration file about what is stored: how it is encrypted, and what may be read back."""

from typing import Literal

import msgspec

Modules = list[list[str]] | Literal[True] | None


class EncryptionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `encryption`: where the project's `langgraph_sdk.Encryption` is."""

    path: str | None = None


class SerdeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `checkpointer.serde`: which classes checkpoints may be made of again.

    Lists name module and class; true is all that hold data, null what langgraph itself stores. With `pickle_fallback`
    whatever cannot be written otherwise is pickled, and reading it runs what it says.
    """

    allowed_json_modules: Modules = None
    allowed_msgpack_modules: Modules = True
    pickle_fallback: bool = False
