"""A program: it links compiled modules from a store into a virtual environment, or compiles modules for the store.

    python -I -S module_store.py link PACKAGES STORE
    python -I -S module_store.py fill PACKAGES STORE

PACKAGES is the folder of the installed packages. The interpreter of the environment runs this file, so it needs nothing
but the standard library, also of an older Python. It reads and compiles code of packages, but executes none of it.

    STORE/<tag of the interpreter>/<module in PACKAGES>/<hash of its source>.pyc
                                                        <hash of its source>-<time>-<size>.pyc

The second form is for files that uv has linked from its cache: all environments have the same file, with the same time.
Python then compares time and size, and does not read the source at each import as it does for the first form.
"""

import contextlib
import hashlib
import importlib.util
import marshal
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_CACHE = "__pycache__"
# What Python compares before it uses a compiled module: the time and the size of the source, or a hash of it.
_BY_TIME = 0b00
_BY_HASH = 0b11


def link(packages: Path, store: Path) -> int:
    """Link the compiled modules of the store into the environment; return their number.

    Python compares each with its source: one that does not fit is compiled again as always.
    """
    number = 0
    for module in _walk(store):
        source = packages / module
        if not source.is_file():
            continue

        compiled = store / module / _Source(source).name
        target = _target(source)
        if compiled.is_file() and not target.exists():
            target.parent.mkdir(exist_ok=True)
            # A file system limits the links of a file. A module without one is compiled as always.
            with contextlib.suppress(OSError):
                os.link(compiled, target)
                number += 1

    return number


def fill(packages: Path, store: Path, *, niceness: int = 19) -> int:
    """Compile the modules that Python has compiled in the environment and that the store lacks; return their number.

    What stands in the environment is not copied: a program of the project may have written it.
    """
    os.nice(niceness)
    number = 0
    for module in _list_compiled(packages):
        source = _Source(packages / module)
        compiled = store / module / source.name
        if not compiled.exists():
            compiled.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(SyntaxError, ValueError, OSError):
                _write(compiled, source.compile())
                number += 1

    return number


class _Source:
    """The source of a module as it was read, once: a program of the project may change the file meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._state = os.fstat(file.fileno())
            self._content = file.read()

        # A copy has a time of its own in each environment.
        self._is_linked = self._state.st_nlink > 1

    @property
    def name(self) -> str:
        """The name of its compiled form in the store."""
        digest = hashlib.sha256(self._content).hexdigest()
        return f"{digest}-{self._time}-{len(self._content)}.pyc" if self._is_linked else f"{digest}.pyc"

    @property
    def _time(self) -> int:
        return int(self._state.st_mtime) & 0xFFFFFFFF

    def compile(self) -> bytes:
        """Return the content of a compiled module. Raises SyntaxError and ValueError."""
        code = compile(self._content, str(self._path), "exec", dont_inherit=True)
        if self._is_linked:
            flags = _BY_TIME
            check = self._time.to_bytes(4, "little") + len(self._content).to_bytes(4, "little")
        else:
            flags = _BY_HASH
            check = importlib.util.source_hash(self._content)

        return importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little") + check + marshal.dumps(code)


def _write(file: Path, content: bytes) -> None:
    """Write a file so that a reader sees all of it or nothing."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _walk(store: Path, module: Path = Path()) -> Iterator[Path]:
    """Yield the modules in the store, each as its path among the packages."""
    folder = store / module
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if entry.is_dir(follow_symlinks=False):
            path = module / entry.name
            if entry.name.endswith(".py"):
                yield path
            else:
                yield from _walk(store, path)


def _list_compiled(packages: Path) -> Iterator[Path]:
    """Yield the modules that have a compiled form of their own, which is no link to one of the store."""
    for folder, subfolders, names in os.walk(packages):
        if _CACHE not in subfolders:
            continue

        subfolders.remove(_CACHE)
        for name in names:
            source = Path(folder, name)
            if name.endswith(".py") and _is_compiled(_target(source)):
                yield source.relative_to(packages)


def _is_compiled(target: Path) -> bool:
    return target.is_file() and target.stat().st_nlink == 1


def _target(source: Path) -> Path:
    """Return where Python looks for the compiled form of a module."""
    return source.parent / _CACHE / f"{source.stem}.{sys.implementation.cache_tag}.pyc"


if __name__ == "__main__":
    command, packages, store = sys.argv[1:]
    run = {"link": link, "fill": fill}[command]
    run(Path(packages), Path(store, str(sys.implementation.cache_tag)))
