"""What the files of a project mean, for builds and for executors, which also run projects that nobody has built.

The module needs nothing but the standard library, because executors import it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDERS_ABOVE = 3
"""How many folders above that of the configuration file may be meant by a path in it."""

POETRY_BUILD_SYSTEM = 'add [build-system] with requires = ["poetry-core"] and build-backend = "poetry.core.masonry.api"'
"""What to do about a project that lacks its build system."""


def lacks_build_system(folder: Path, pyproject: Mapping[str, Any]) -> bool:
    """Whether a folder lists packages for poetry alone, which builds read only with poetry's build system."""
    tool = pyproject.get("tool")
    has_others = bool({"build-system", "project"} & pyproject.keys()) or (folder / "setup.py").is_file()
    return isinstance(tool, dict) and "poetry" in tool and not has_others
