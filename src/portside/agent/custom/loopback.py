"""`get_client()` of the SDK without a URL: a client of the server that the code runs in.

The clients work once the server runs, from any event loop.
"""

from typing import TYPE_CHECKING

from portside.executor.sdk_modules import SdkCache, install_sdk_modules
from portside.executor.user import get_current_user
from portside.kernel.http.in_process import InProcessRequest, InProcessServer, ResponseHead

if TYPE_CHECKING:
    from portside.executor.sdk_transport import ResponseBody

# The SDK creates clients without arguments, so there is one entry point for the whole process.
LOOPBACK = InProcessServer()


def let_sdk_find_server(cache: SdkCache) -> None:
    """Let the SDK's clients without a URL call this server, and its functions find this cache."""
    install_sdk_modules(LOOPBACK, send_as_current_user, cache)


async def send_as_current_user(request: InProcessRequest) -> "tuple[ResponseHead, ResponseBody]":
    """Send a request for the user that the code runs for. Raises ServerNotRunning and ResponseCutOff."""
    return await LOOPBACK.send(request._replace(user=get_current_user()))
