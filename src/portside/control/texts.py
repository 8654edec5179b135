"""Text that comes out of builds and servers, made fit to be stored."""


def storable(text: str, max_bytes: int = 8192) -> str:
    """Cut a text to its first bytes in UTF-8, and replace NUL, which Postgres does not store."""
    return text.encode()[:max_bytes].decode(errors="ignore").replace("\0", "\ufffd")
