"""Packages whose own code runs when something of it is asked for first, instead of at their first import.

Many a package imports all it offers in its `__init__`, also for those who import one small module of it. A package that
is `put_off` is found and imported as ever, and so are the modules in it; only its `__init__` waits until a name is
looked up in it that is not there yet. Whoever asks sees no difference but the moment. It is for packages that do
nothing but import and define, for what one registers or patches would come late, and whose modules do not ask for names
of the package while they are imported: a thread that runs the package would wait for them, and they for it.

The standard library's `LazyLoader` does not do: it runs the package as soon as a module in it is imported.
"""

import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_WAITING = "__portside_waiting__"


def put_off(*packages: str) -> None:
    """Let these packages wait, where nobody has imported them yet; what is not installed is not missed."""
    sys.meta_path.insert(0, _Finder(packages))


class _LatePackage(ModuleType):
    """A package that has not run; when it has, it is a module like every other."""

    def __getattr__(self, name: str) -> Any:
        """Run the package and look again; only what is missing comes here."""
        if _run(self):
            return getattr(self, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        """Run the package first, which would overwrite the value; modules in it are set by their import."""
        if not name.startswith("__") and sys.modules.get(f"{self.__name__}.{name}") is not value:
            _run(self)
        ModuleType.__setattr__(self, name, value)

    def __dir__(self) -> list[str]:
        _run(self)
        return list(vars(self))


class _Waiting:
    """How a package is run, once; `lock` is entered again by its own code, which asks for names of it."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.lock = threading.RLock()
        self.has_begun = False


def _run(package: ModuleType) -> bool:
    """Run a package, or wait until another thread did. False for its own code, while it runs."""
    waiting: _Waiting | None = vars(package).get(_WAITING)
    if waiting is None:
        return type(package) is ModuleType
    with waiting.lock:
        if waiting.has_begun:
            return type(package) is ModuleType
        waiting.has_begun = True
        try:
            waiting.loader.exec_module(package)
        except BaseException:
            waiting.has_begun = False
            raise
        del vars(package)[_WAITING]
        package.__class__ = ModuleType
    return True


class _LateLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LatePackage(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        # Sources and data files are asked of it, and it is what loads the package another time.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        vars(module)[_WAITING] = _Waiting(self._loader)


class _Finder(MetaPathFinder):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = set(packages)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._packages:
            return None
        self._packages.discard(fullname)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec
