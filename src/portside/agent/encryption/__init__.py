"""Encryption of what an agent server stores (docs/guides/encrypt-data.md).

`vault` seals and opens documents and blobs, by the handlers of the project (`handlers`) or by AES keys (`keys`). It is
used in two places alone: `codec` stands between named queries and the database, for documents and streams, and the
checkpointer seals what a graph remembers. `places` says what of which statement is sealed; whatever is not in its table
is stored as it came, and a test compares the table with the statements there are.

Without encryption configured there is no vault, and nothing of this is called.
"""
