"""Measures a process of `make coverage`: the lines and branches of Portside that it executes, and its named queries.

Every interpreter of the checkout calls `begin` at its start while scripts/measure_coverage.py runs the tests; processes
that do not descend from that run go on as usual. So servers, executors and listeners are measured too, also those that
are forked, are given an environment of their own, or replace themselves by another program. A process that is killed
leaves its queries, but not its lines.
"""

import atexit
import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

MARK = "portside_is_measured"
STARTED = "started"
SAVED = "saved"
QUERIES = "queries"
# Defines named queries.
QUERY_MODULE = "portside.kernel.db"


def begin(run: int, source: str, results: str) -> None:
    """Measure this process, if it descends from the process `run`, and those that it forks.

    `source` is the folder whose files are measured, and `results` the folder for what is found.
    """
    # Python reads the folder that has the call of this function twice where the system has two names for it.
    if hasattr(sys, MARK) or not _descends_from(run):
        return

    setattr(sys, MARK, True)
    notes = _Notes(results)
    measurement = _Measurement(source, results, notes)
    atexit.register(measurement.save)
    os.register_at_fork(after_in_child=measurement.begin_again)

    # These end a process, or the program in it, without what `atexit` would do.
    for name in ("_exit", "execv", "execve"):
        setattr(os, name, _save_first(getattr(os, name), measurement))

    sys.meta_path.insert(0, _QueryModuleFinder(source, notes))


def _descends_from(ancestor: int) -> bool:
    """Whether this process is the ancestor, its child or one further down."""
    pid = os.getpid()
    while pid > 1:
        if pid == ancestor:
            return True

        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - at the start of each process
            pid = int(file.read().rpartition(")")[2].split()[1])

    return False


class _Notes:
    """Files of the results to which all processes append lines."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def add(self, file: str, line: str) -> None:
        """Append a line at once: this process may be killed."""
        with open(f"{self._folder}/{file}", "a") as opened:  # noqa: PTH123 - at the start of each process
            opened.write(f"{line}\n")


class _Measurement:
    """The lines and branches that one process executes."""

    def __init__(self, source: str, results: str, notes: _Notes) -> None:
        self._source = source
        self._results = results
        self._notes = notes
        self._begin()

    def _begin(self) -> None:
        import coverage

        self._notes.add(STARTED, str(os.getpid()))
        self._coverage = coverage.Coverage(
            data_file=str(Path(self._results, "data", "python")),
            data_suffix=True,
            branch=True,
            include=[f"{self._source}/*"],
            config_file=False,
        )

        # A process that executes nothing of Portside is no mistake, and must print nothing.
        self._coverage.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured"])
        self._coverage.start()

    def begin_again(self) -> None:
        """Measure a process that was forked; what its parent did until then is in the results of the parent."""
        self._coverage.stop()
        self._begin()

    def save(self) -> None:
        """Write the lines of this process, if it can."""
        self._coverage.stop()
        # A process that took another user's rights may not write there, and must print nothing.
        if not os.access(self._results, os.W_OK):
            return

        self._coverage.save()
        self._notes.add(SAVED, str(os.getpid()))


def _save_first(function: Callable[..., Any], measurement: _Measurement) -> Callable[..., Any]:
    def save_and_call(*arguments: Any) -> Any:
        measurement.save()
        return function(*arguments)

    return save_and_call


class _QueryModuleFinder(MetaPathFinder):
    """Lets named queries tell of their use, as soon as the module that defines them is imported."""

    def __init__(self, source: str, notes: _Notes) -> None:
        self._source = source
        self._notes = notes

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != QUERY_MODULE:
            return None

        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_watch(module: Any) -> None:
            execute(module)
            _watch_queries(module, self._source, self._notes)

        spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec


def _watch_queries(module: Any, source: str, notes: _Notes) -> None:
    """Note each named query when the source reads its statement to execute it; tests that prepare all do not count."""
    packages: dict[Any, str] = {}
    noted = set()
    read_package = module.Queries.__init__
    statement = module.Query.sql

    def read_and_remember(queries: Any, package: str, *arguments: Any) -> None:
        read_package(queries, package, *arguments)
        packages.update(dict.fromkeys(queries, package))

    def read_statement(query: Any) -> Any:
        caller = sys._getframe(1).f_code
        is_use = caller.co_filename.startswith(source) and caller.co_name != "__getattr__"
        if is_use and query not in noted and query in packages:
            noted.add(query)
            notes.add(QUERIES, f"{packages[query]} {query.name}")

        return statement.__get__(query)

    module.Queries.__init__ = read_and_remember
    module.Query.sql = property(read_statement, statement.__set__)
