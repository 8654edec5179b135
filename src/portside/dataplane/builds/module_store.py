"""A program: it links compiled modules from a store into a virtual environment, or compiles modules for the store.

    python -I -S module_store.py link PACKAGES STORE
    python -I -S module_store.py fill PACKAGES STORE

PACKAGES is the folder of the installed packages. The interpreter of the environment runs this file, so it needs nothing
but the standard library, also of an older Python. It reads and compiles code of packages, but executes none of it.

    STORE/<tag of the interpreter>/<module in PACKAGES>/<hash of its source>.pyc
"""

import contextlib
import hashlib
import os
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

_CACHE = "__pycache__"


def link(packages: Path, store: Path) -> int:
    """Link the compiled modules of the store into the environment; return their number.

    Each names the hash of its source, which Python compares: one that does not fit is compiled again as always.
    """
    number = 0
    for module in _walk(store):
        source = packages / module
        if not source.is_file():
            continue

        compiled = store / module / _name(source)
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
        source = packages / module
        compiled = store / module / _name(source)
        if not compiled.exists():
            compiled.parent.mkdir(parents=True, exist_ok=True)
            # Python writes to another file first: a reader sees a whole one or none.
            with contextlib.suppress(py_compile.PyCompileError, OSError):
                py_compile.compile(
                    str(source),
                    str(compiled),
                    doraise=True,
                    invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
                )
                number += 1

    return number


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


def _name(source: Path) -> str:
    return f"{hashlib.sha256(source.read_bytes()).hexdigest()}.pyc"


if __name__ == "__main__":
    command, packages, store = sys.argv[1:]
    run = {"link": link, "fill": fill}[command]
    run(Path(packages), Path(store, str(sys.implementation.cache_tag)))
