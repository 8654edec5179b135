"""The errors of encryption."""

from portside.kernel.errors import PortsideError


class CannotDecrypt(PortsideError):
    """What is stored cannot be decrypted with the keys of this server."""

    code = "cannot_decrypt"


class EncryptionFailed(PortsideError):
    """The encryption handler of the project failed; nothing was stored."""

    code = "encryption_failed"
