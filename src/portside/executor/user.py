"""The user whom a graph executes for, as the graph's code sees it."""

from typing import Any


class User(dict[str, Any]):
    """A user: the fields that authentication returned, as items and as attributes; other attributes of the original."""

    __slots__ = ("_original",)

    def __init__(self, fields: dict[str, Any], original: Any = None) -> None:
        super().__init__(fields)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        """Return a field, or an attribute of what authentication returned."""
        if name in self:
            return self[name]
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._original, name)

    def __reduce__(self) -> Any:
        """Copy only the fields: the original may mean nothing where the copy goes, such as into a checkpoint."""
        return (User, (dict(self),))
