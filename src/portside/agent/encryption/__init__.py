"""Encryption of what an agent server stores (docs/guides/encrypt-data.md).

`encryptor` encrypts and decrypts documents and blobs, by the project's handlers or AES keys (`ciphers`). It has two
users: `codec` stands between named queries and the database, and the checkpointer encrypts checkpoints before
they are buffered. The header of each query declares what of it is encrypted (`sql/declarations.py`).

`locations` names what a value is bound to, and `envelopes` how ciphertext is stored. `replacements`, `rebinding` and
`key_renewal` write stored ciphertext again. Without encryption configured there is no encryptor, and none of this is
called.
"""
