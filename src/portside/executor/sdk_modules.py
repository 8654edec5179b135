"""The modules that the SDK imports from the server that it runs in: for `get_client()` without a URL, and its cache.

They belong to another server's package. Substitutes are registered under their names, with only what the SDK uses,
before the project's code is imported, so that it may create clients at import time.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from portside.executor.sdk_transport import Send

log = logging.getLogger(__name__)
T = TypeVar("T")
HOST_PACKAGE = "langgraph_api"
MAX_CACHE_TTL = timedelta(days=1)
CacheStatus = Literal["miss", "fresh", "stale", "expired"]
_DEFERS = "__LANGGRAPH_DEFER_LOOPBACK_TRANSPORT"


def install_sdk_modules(app: Any, send: "Send", cache: "SdkCache") -> None:
    """Let the SDK find a server, the transport to it, and the server's cache."""
    os.environ.pop(_DEFERS, None)
    package = _substitute_module(HOST_PACKAGE, is_package=True)
    package.__path__ = []
    transport = {"__getattr__": partial(_find_in_transport, send)}

    contents = {"server": {"app": app}, "asgi_transport": transport, "cache": cache.sdk_names}
    for name, content in contents.items():
        module = _substitute_module(f"{HOST_PACKAGE}.{name}")
        vars(module).update(content)
        setattr(package, name, module)


def _find_in_transport(send: "Send", name: str) -> Any:
    """Look a name up in the module of the transport."""
    if name != "ASGITransport":
        raise AttributeError(f"module '{HOST_PACKAGE}.asgi_transport' has no attribute {name!r}")

    from portside.executor.sdk_transport import ServerTransport

    # The SDK names a server and a root path, but there is only one of each.
    return lambda *_arguments, **_options: ServerTransport(send)


def _substitute_module(name: str, *, is_package: bool = False) -> ModuleType:
    module = ModuleType(name, "Imported by the SDK from the server that it runs in.")
    module.__spec__ = ModuleSpec(name, None, is_package=is_package)
    sys.modules[name] = module
    return module


class CacheStore(Protocol):
    """Where a server stores the entries of its cache. Any loop may call."""

    async def read(self, key: str) -> tuple[str, float] | None:
        """Return the JSON of an entry and its age in seconds, or None. Raises ValueError."""
        ...

    async def write(self, key: str, content: str, ttl_s: float) -> None:
        """Store JSON for a time. Raises ValueError for a bad value or key."""
        ...


class CacheEntry(NamedTuple):
    """A cached value and its age."""

    value: Any
    age_s: float


class SdkCache:
    """The functions of `langgraph_sdk.cache`, which defines what they do and imports them by name."""

    def __init__(self, store: CacheStore) -> None:
        self._store = store
        self._refreshing: dict[str, asyncio.Task[Any]] = {}

    @property
    def sdk_names(self) -> dict[str, Any]:
        """The functions and the class that the SDK imports, by their names there."""
        return {"cache_get": self.cache_get, "cache_set": self.cache_set, "swr": self.swr, "SWRResult": SWRResult}

    async def cache_get(self, key: str) -> Any | None:
        """Return a cached value, or None."""
        entry = await self._read(key)
        return None if entry is None else entry.value

    async def cache_set(self, key: str, value: Any, ttl: timedelta | None = None) -> None:
        """Store a value, for a day at most."""
        if ttl is not None and ttl < timedelta(0):
            raise ValueError("the ttl is negative")
        await self._write(key, value, ttl or MAX_CACHE_TTL)

    async def swr(
        self,
        key: str,
        loader: Callable[[], Awaitable[T]],
        *,
        fresh_for: timedelta,
        max_age: timedelta,
        model: Any = None,
    ) -> "SWRResult[T]":
        """Return a cached value, and reload it in the background once it is older than `fresh_for`."""

        async def renew(value: Any = ...) -> T:
            loaded_value: Any = await loader() if value is ... else value
            if model is not None:
                loaded_value = model.model_validate(loaded_value)

            await self._write(key, loaded_value if model is None else loaded_value.model_dump(mode="json"))
            result: T = loaded_value
            return result

        entry = _read_as(model, await self._read(key))
        if entry is None or entry.age_s >= min(max_age, MAX_CACHE_TTL).total_seconds():
            return SWRResult(await renew(), "miss" if entry is None else "expired", renew)
        if entry.age_s < fresh_for.total_seconds():
            return SWRResult(entry.value, "fresh", renew)

        self._refresh(key, renew)
        return SWRResult(entry.value, "stale", renew)

    async def _read(self, key: str) -> CacheEntry | None:
        entry = await self._store.read(key)
        return None if entry is None else CacheEntry(json.loads(entry[0]), entry[1])

    async def _write(self, key: str, value: Any, ttl: timedelta = MAX_CACHE_TTL) -> None:
        await self._store.write(key, json.dumps(value, allow_nan=False), ttl.total_seconds())

    def _refresh(self, key: str, load: Callable[[], Awaitable[Any]]) -> None:
        """Reload a value in the background, unless this process already does; a failure is logged."""
        if key not in self._refreshing:
            self._refreshing[key] = task = asyncio.ensure_future(_attempt(key, load))
            task.add_done_callback(lambda _task: self._refreshing.pop(key, None))


class SWRResult(Generic[T]):
    """A value and its cache status: `miss`, `fresh`, `stale` or `expired`."""

    def __init__(self, value: T, status: CacheStatus, renew: "Callable[[Any], Awaitable[T]]") -> None:
        self.value = value
        self.status: CacheStatus = status
        self._renew = renew

    async def mutate(self, value: Any = ...) -> T:
        """Replace the value, or reload it."""
        self.value = await self._renew(value)
        self.status = "fresh"
        return self.value


def _read_as(model: Any, entry: CacheEntry | None) -> CacheEntry | None:
    """Return an entry with its value as an instance of the model; None for a value of another revision's form."""
    if model is None or entry is None:
        return entry

    try:
        return CacheEntry(model.model_validate(entry.value), entry.age_s)
    except ValueError:
        return None


async def _attempt(key: str, load: Callable[[], Awaitable[Any]]) -> None:
    try:
        await load()
    except Exception:
        log.exception("a cached value could not be reloaded", extra={"fields": {"key": key}})
