"""The largest sizes that the operator of a cluster allows, and what in a `resource_spec` is above them.

The listener refuses a revision that is too large. It also tells the control plane its limits, which refuses the
request. Both call this, and neither imports the other.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from portside.kernel.quantities import parse_quantity

_MB = 1024 * 1024
_Limit = Annotated[float, msgspec.Meta(gt=0, le=1e12)]


class SizeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one listener; a null is none."""

    cpu: _Limit | None = None
    memory_mb: _Limit | None = None
    storage_gi: _Limit | None = None
    scale: _Limit | None = None


class Excess(NamedTuple):
    """A field of a spec that is above a limit, or whose size cannot be read, and why."""

    path: tuple[str | int, ...]
    reason: str


class _Bound(NamedTuple):
    """A limit with its unit and the listener's setting."""

    value: float | None
    unit: str
    setting: str


def find_excess(spec: Mapping[str, Any], limits: SizeLimits) -> Excess | None:
    """Return the first field of a complete `resource_spec` that the operator does not allow, or None."""
    cpu = _Bound(limits.cpu, "CPUs", "KUBERNETES_MAX_CPU")
    memory = _Bound(limits.memory_mb, "MB", "KUBERNETES_MAX_MEMORY_MB")
    storage = _Bound(limits.storage_gi, "GiB", "KUBERNETES_MAX_STORAGE_GI")
    scale = _Bound(limits.scale, "replicas", "KUBERNETES_MAX_SCALE")

    for name, value in spec.items():
        excess = None
        if name.endswith(("cpu", "cpu_limit")):
            excess = _compare((name,), value, cpu)
        elif name.endswith(("memory_mb", "memory_limit_mb")):
            excess = _compare((name,), value, memory)
        elif name.endswith("storage_gi"):
            excess = _compare((name,), value, storage)
        elif name.endswith("scale"):
            excess = _compare((name,), value, scale)

        if excess is not None:
            return excess

    for path, quantities in _list_container_sizes(spec):
        excess = _compare_quantity((*path, "cpu"), quantities.get("cpu"), cpu)
        excess = excess or _compare_quantity((*path, "memory"), quantities.get("memory"), memory, divisor=_MB)
        if excess is not None:
            return excess

    return None


def _compare(path: tuple[str | int, ...], value: float | None, bound: _Bound) -> Excess | None:
    if value is None or bound.value is None or value <= bound.value:
        return None

    return Excess(
        path, f"is {value:g}, and this listener allows at most {bound.value:g} {bound.unit} ({bound.setting})"
    )


def _compare_quantity(path: tuple[str | int, ...], text: Any, bound: _Bound, divisor: int = 1) -> Excess | None:
    if text is None:
        return None

    try:
        amount = parse_quantity(text)
    except ValueError:
        return Excess(path, f"is {str(text)!r}, which is no quantity; write an amount such as 500m or 2Gi")

    return _compare(path, amount / divisor, bound)


def _list_container_sizes(spec: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Any]]]:
    """Yield the requests and the limits of the user's containers, with the paths of their fields."""
    for kind in ("init_containers", "sidecars"):
        for number, container in enumerate(spec.get(kind) or ()):
            for part in ("requests", "limits"):
                quantities = (container.get("resources") or {}).get(part)
                if isinstance(quantities, dict):
                    yield (kind, number, "resources", part), quantities
