"""Backups of tests, whose keys are made of their passphrase at the least cost that a reader accepts.

The cost of the product takes half a second for each; tests/unit/test_backup_container.py holds it.
"""

from typing import Any

from portside.backup.container import EncryptedWriter, Header, Passphrase, Sink

LEAST_LOG_N = 14


def derive_keys_cheaply() -> None:
    """From now on, lower the cost of the backups that this process writes, and those that are forked from it."""
    write: Any = EncryptedWriter.__init__

    def write_cheaply(self: EncryptedWriter, out: Sink, header: Header, passphrase: Passphrase) -> None:
        header.scrypt_log_n = min(header.scrypt_log_n, LEAST_LOG_N)
        write(self, out, header, passphrase)

    changed: Any = EncryptedWriter
    changed.__init__ = write_cheaply
