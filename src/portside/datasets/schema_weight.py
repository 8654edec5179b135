"""How large a schema is with every reference written out: a short one can stand for more than could ever be checked."""

from typing import Any
from urllib.parse import unquote

MAX_WEIGHT = 5_000
_ELSEWHERE = ("$dynamicRef", "$recursiveRef")


class SchemaTooLarge(Exception):
    """The schema refers to itself or elsewhere, or is too large with its references written out."""


def weigh(schema: dict[str, Any]) -> int:
    """Count the objects and lists of a schema, those that references lead to as often as they do.

    Raises SchemaTooLarge; a reference that leads nowhere is left to the reader of schemas.
    """
    return _Scale(schema).of(schema)


class _Scale:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[str, int] = {}
        self._open: set[str] = set()

    def of(self, part: Any) -> int:
        """Return the weight of a part."""
        if not isinstance(part, (dict, list)):
            return 0
        total = 1
        for step, inner in part.items() if isinstance(part, dict) else enumerate(part):
            if step in _ELSEWHERE or (step == "$id" and part is not self._root and isinstance(inner, str)):
                raise SchemaTooLarge(f"{step} is not supported in schemas of datasets")
            total += self._behind(inner) if step == "$ref" and isinstance(inner, str) else self.of(inner)
            if total > MAX_WEIGHT:
                raise SchemaTooLarge(f"the schema has more than {MAX_WEIGHT} parts with its references written out")
        return total

    def _behind(self, reference: str) -> int:
        if reference in self._known:
            return self._known[reference]
        if reference in self._open:
            raise SchemaTooLarge(f"the schema refers to itself by {reference[:200]}, which is not supported")
        if not (reference == "#" or reference.startswith("#/")):
            raise SchemaTooLarge(f"is no JSON Schema of its own: {reference[:200]} leads elsewhere")
        self._open.add(reference)
        self._known[reference] = weight = self.of(self._find(reference))
        self._open.discard(reference)
        return weight

    def _find(self, reference: str) -> Any:
        found: Any = self._root
        for step in unquote(reference).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return found
