"""The manifest of datasets, whose handlers use the services of tracing."""

from portside.datasets import http
from portside.kernel.modules import Module
from portside.tracing.services import TracingServices

module = Module[TracingServices](package="portside.datasets", routes=list(http.routes), has_migrations=True)
