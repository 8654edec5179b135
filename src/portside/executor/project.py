"""The facts about a project that an executor needs: where its code is, and the environment of that code."""

import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GraphSource:
    """The location of a graph: `path` is `file.py:name` or `package.module:name`."""

    path: str
    description: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project by its configuration file; paths in it are relative to `folder`."""

    file: Path
    graphs: dict[str, GraphSource]
    dependencies: list[str] = field(default_factory=list)
    """Packages to install; those that begin with a dot are folders of the project, which are imported from."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that are set unless the process has them."""

    @property
    def folder(self) -> Path:
        """The project's folder."""
        return self.file.parent


def set_environment(project: Project) -> None:
    """Set the variables of a project that this process does not have."""
    for name, value in project.env.items():
        os.environ.setdefault(name, value)
