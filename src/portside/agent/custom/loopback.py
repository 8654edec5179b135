"""`get_client()` of the SDK without an address: a client of the very server that the code runs in.

The SDK looks for such a server under the names of the modules of another one, which it imports while it makes a client.
`introduce` puts stand-ins under these names: what the SDK asks for, and nothing else. They are there before the
project's code is imported, so that a client may be made there; it can be used when the server runs, from any loop.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from portside.kernel.http.inside import Inside

HOST_PACKAGE = "langgraph_api"
_DEFERS = "__LANGGRAPH_DEFER_LOOPBACK_TRANSPORT"
# The SDK makes its clients without being given anything, so there is one way in for the process.
INSIDE = Inside()


def introduce(**modules: dict[str, Any]) -> None:
    """Have the SDK find this server; `modules` are further ones that it asks a server for, with what is in them."""
    os.environ.pop(_DEFERS, None)
    package = _stand_in(HOST_PACKAGE, is_package=True)
    package.__path__ = []
    offered: dict[str, dict[str, Any]] = {
        "server": {"app": INSIDE},
        "asgi_transport": {"__getattr__": _transport},
        **modules,
    }
    for name, content in offered.items():
        module = _stand_in(f"{HOST_PACKAGE}.{name}")
        vars(module).update(content)
        setattr(package, name, module)


def _transport(name: str) -> Any:
    """Import the transport with the first client: most servers never make one, and httpx is of no other use here."""
    if name != "ASGITransport":
        raise AttributeError(name)
    from portside.agent.custom.transport import LoopbackTransport

    return LoopbackTransport


def _stand_in(name: str, *, is_package: bool = False) -> ModuleType:
    module = ModuleType(name, "What the SDK asks the server for that it runs in.")
    module.__spec__ = ModuleSpec(name, None, is_package=is_package)
    sys.modules[name] = module
    return module
