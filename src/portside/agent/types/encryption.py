"""The sections of the configuration file about stored data: its encryption, and the classes that may be restored."""

import msgspec

Modules = list[list[str]] | bool | None


class EncryptionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `encryption`: the path of the project's `langgraph_sdk.Encryption`."""

    path: str | None = None


class SerdeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `checkpointer.serde`: the classes that may be restored from checkpoints.

    Lists name modules and classes; true allows all classes that hold data, null those that langgraph itself stores.
    With `pickle_fallback` everything else is pickled, and reading a pickle runs the code that it names.
    """

    allowed_json_modules: Modules = None
    allowed_msgpack_modules: Modules = True
    pickle_fallback: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for false, which means nothing here; older versions of msgspec have no literal booleans."""
        if self.allowed_json_modules is False or self.allowed_msgpack_modules is False:
            raise ValueError("must be a list of modules, true or null, but is false")
