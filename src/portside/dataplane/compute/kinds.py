"""The kinds of compute, by the names that `portside listener --compute` takes."""

import os
from collections.abc import Callable, Mapping

from portside.dataplane.compute.interface import Compute
from portside.dataplane.compute.machine import Machine
from portside.dataplane.settings import ListenerSettings
from portside.kernel.errors import UserMistake
from portside.kernel.settings import load_settings


def open_compute(kind: str, settings: ListenerSettings) -> Compute:
    """Return the compute of a kind. Raises KeyError for a name that is none, UserMistake for what it lacks."""
    return KINDS[kind](settings)


def _open_kubernetes(settings: ListenerSettings) -> Compute:
    from portside.dataplane.compute.kubernetes.settings import KubernetesSettings

    try:
        from portside.dataplane.compute.kubernetes.berth import Kubernetes
    except ImportError as exc:
        raise UserMistake(f"compute kubernetes needs {exc.name}: install portside[kubernetes]") from exc
    return Kubernetes.from_environment(settings, load_settings(KubernetesSettings, os.environ))


KINDS: Mapping[str, Callable[[ListenerSettings], Compute]] = {"process": Machine, "kubernetes": _open_kubernetes}
