"""The cache file of the descriptions of graphs (setting EXECUTOR_KNOWN_GRAPHS), read while no executor runs.

A server that finds the file starts no executor before there is work. The file belongs to one build with one
environment: use another file for another build. It is written when the first executor is ready, and when a graph is
described for the first time. A file that cannot be read counts as missing.
"""

import os
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ormsgpack

from portside.executor import messages
from portside.executor.link import CallFailed
from portside.executor.requests import GraphFacts
from portside.kernel.logs import get_logger

log = get_logger(__name__)
Description = tuple[str, bytes]
"""The method that describes a graph, and its arguments as JSON."""


class GraphCache:
    """The file of the graphs of one language. Without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.facts: dict[str, GraphFacts] = {}
        self.libraries: dict[str, str] = {}
        self.descriptions: dict[Description, Any] = {}

    def load(self) -> bool:
        """Read the file; return whether it was there."""
        if self._path is None:
            return False

        try:
            content = ormsgpack.unpackb(self._path.read_bytes())
            self.facts = {name: messages.read(GraphFacts, fields) for name, fields in content["facts"].items()}
            self.libraries = dict(content["libraries"])
            self.descriptions = {(method, key): value for method, key, value in content["descriptions"]}
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError, AttributeError, CallFailed) as exc:
            log.warning("the cached descriptions of graphs cannot be read", path=str(self._path), error=str(exc))
            return False

        return bool(self.facts)

    def save(
        self,
        facts: Mapping[str, GraphFacts],
        libraries: Mapping[str, str],
        descriptions: MutableMapping[Description, Any],
    ) -> None:
        """Write the file if the descriptions have changed. If it cannot be written, the old file stays."""
        if self._path is None:
            return

        current = (dict(facts), dict(libraries), dict(descriptions))
        if current == (self.facts, self.libraries, self.descriptions):
            return

        self.facts, self.libraries, self.descriptions = current
        content = {
            "facts": {name: asdict(fact) for name, fact in facts.items()},
            "libraries": self.libraries,
            "descriptions": [(method, key, value) for (method, key), value in descriptions.items()],
        }

        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(ormsgpack.packb(content))
            temporary.replace(self._path)
        except OSError as exc:
            log.warning("the descriptions of graphs cannot be cached", path=str(self._path), error=str(exc))
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
