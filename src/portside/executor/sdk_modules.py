"""The modules that the SDK imports from the server that it runs in, for `get_client()` without a URL.

They belong to another server's package. Substitutes are registered under their names, with only what the SDK uses,
before the project's code is imported, so that it may create clients at import time.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HOST_PACKAGE = "langgraph_api"
_DEFERS = "__LANGGRAPH_DEFER_LOOPBACK_TRANSPORT"


def install_sdk_modules(app: Any, transport: type[Any], **modules: dict[str, Any]) -> None:
    """Let the SDK find a server and the transport to it; `modules` has others that it imports, with their content."""
    os.environ.pop(_DEFERS, None)
    package = _substitute_module(HOST_PACKAGE, is_package=True)
    package.__path__ = []
    contents = {"server": {"app": app}, "asgi_transport": {"ASGITransport": transport}, **modules}
    for name, content in contents.items():
        module = _substitute_module(f"{HOST_PACKAGE}.{name}")
        vars(module).update(content)
        setattr(package, name, module)


def _substitute_module(name: str, *, is_package: bool = False) -> ModuleType:
    module = ModuleType(name, "Imported by the SDK from the server that it runs in.")
    module.__spec__ = ModuleSpec(name, None, is_package=is_package)
    sys.modules[name] = module
    return module
