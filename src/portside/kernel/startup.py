"""Lets processes start sooner: packages are imported when they are first used, and garbage is collected afterwards."""

import gc
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# langgraph needs one small module of the first two, and many servers send no request; importing the rest would take a
# seventh of the start.
LAZY_PACKAGES = ("langsmith.types", "langgraph_sdk", "httpx")
# The command line of httpx, which imports rich and pygments. httpx works without it.
UNUSED_MODULE = "httpx._main"
# The thresholds of the three generations; the first counts allocations, and is at most 2,000 by default.
COLLECT_AFTER = (10_000, 10, 10)
_PENDING = "__portside_pending__"


def tune_garbage_collection() -> None:
    """Exclude the objects of the start from garbage collection, and collect less often.

    Call it when the process has started, after `gc.disable()` at its beginning. A server has 200,000 objects that
    live as long as it does; a collection of them paused all runs for 60 ms. They are not collected even once: that
    would take a tenth of the start, to find the 2 % of them that are garbage.
    """
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()


def import_without_rich(*packages: str) -> None:
    """Import packages that would also import rich, for tracebacks and a command line that no server uses.

    rich takes a seventh of the imports and 4 MB. Other code imports it as usual.
    """
    name = "rich"
    if name in sys.modules:
        return

    sys.modules[name] = None  # type: ignore[assignment]
    try:
        for package in packages:
            import_module(package)
    finally:
        del sys.modules[name]


def defer_packages() -> None:
    """Import LAZY_PACKAGES when they are first used, and UNUSED_MODULE never. Call it before anything imports them."""
    import_lazily(*LAZY_PACKAGES)
    sys.modules.setdefault(UNUSED_MODULE, None)  # type: ignore[arg-type]


def import_lazily(*packages: str) -> None:
    """Defer the `__init__` of packages until one of their names is first looked up; their modules import as usual.

    Many packages import all their modules in their `__init__`, even for code that needs one small module. Packages that
    are already imported or not installed are unaffected.

    Use it only for packages whose `__init__` just imports and defines names; registrations and patches would happen too
    late. Modules of the package must not look up names of the package while they are imported: a thread that runs the
    package would wait for the module, and the module for the package.

    `LazyLoader` of the standard library does not help: it runs the package as soon as one of its modules is imported.
    """
    sys.meta_path.insert(0, _Finder(packages))


class _LazyPackage(ModuleType):
    """A package whose `__init__` has not run. Afterwards its class is the ordinary `ModuleType`."""

    def __getattr__(self, name: str) -> Any:
        """Run the package and look the name up again. Python calls this only for names that are missing."""
        if _run(self):
            return getattr(self, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        """Run the package before a name is set, or it would overwrite it. Imports of submodules do not run it."""
        if not name.startswith("__") and sys.modules.get(f"{self.__name__}.{name}") is not value:
            _run(self)
        ModuleType.__setattr__(self, name, value)

    def __dir__(self) -> list[str]:
        _run(self)
        return list(vars(self))


class _PendingInit:
    """Runs a package once. The lock is reentrant, because the package looks up its own names while it runs."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.lock = threading.RLock()
        self.has_begun = False


def _run(package: ModuleType) -> bool:
    """Run a package, or wait until another thread has. Returns False to the package's own code while it runs."""
    pending: _PendingInit | None = vars(package).get(_PENDING)
    if pending is None:
        # The package has run already: another thread was faster, or it is an ordinary module.
        return type(package) is ModuleType

    with pending.lock:
        if pending.has_begun:
            return type(package) is ModuleType

        pending.has_begun = True
        try:
            pending.loader.exec_module(package)
        except BaseException:
            pending.has_begun = False
            raise

        del vars(package)[_PENDING]
        package.__class__ = ModuleType

    return True


class _LazyLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyPackage(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        # The original loader, which reads sources and data files, and reloads the package.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader

        vars(module)[_PENDING] = _PendingInit(self._loader)


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
            spec.loader = _LazyLoader(spec.loader)

        return spec
