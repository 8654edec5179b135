"""Source archives as clients ask for a place to put them (contract: section 2, `upload-url`)."""

import msgspec
from msgspec import UNSET, UnsetType


class UploadRequest(msgspec.Struct):
    """What the client can do: whether it sends the headers that the answer names."""

    supports_upload_headers: bool = False


class UploadAddress(msgspec.Struct):
    """Where to PUT one archive, and the path by which a revision names it.

    The address opens without a key, for an hour and for one archive; `upload_headers` are to be sent with it.
    """

    upload_url: str
    object_path: str
    upload_headers: dict[str, str] | UnsetType = UNSET


class UploadQuery(msgspec.Struct):
    """The token of an upload address."""

    token: str = ""
