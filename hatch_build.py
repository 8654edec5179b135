"""Refuses to build a wheel or an sdist that lacks the console or the executor of JavaScript graphs.

Both are built from `console/` and `executor-js/`, and git does not know them: a package that was built from a fresh
clone would lack them without a word. An editable installation does without.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# A file of each build, and what the package lacks without it.
BUILT = {
    "src/portside/console/static/index.html": "the console",
    "src/portside/executor_js/main.mjs": "the executor of JavaScript graphs",
}


class CompletenessHook(BuildHookInterface):  # type: ignore[type-arg]
    """Looks for what `make console` builds, before a wheel or an sdist is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the names are hatchling's
        if version == "editable":
            return

        missing = find_missing(Path(self.root))
        if missing:
            message = (
                f"the {self.target_name} would lack {' and '.join(missing)}: run 'make console' first, which needs npm"
            )
            raise RuntimeError(message)


def find_missing(root: Path) -> list[str]:
    """Return what was not built into the package yet."""
    return [name for file, name in BUILT.items() if not (root / file).is_file()]
