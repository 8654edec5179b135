"""The manifest of the console."""

from portside.console import http
from portside.console.http import ConsoleServices
from portside.kernel.modules import Module

module = Module[ConsoleServices](package="portside.console", routes=list(http.routes), has_rate_limits=False)
