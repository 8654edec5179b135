"""The manifest of datasets, whose handlers use the services of tracing."""

from portside.datasets import http
from portside.datasets.datasets import empty_workspace
from portside.kernel.modules import Module
from portside.tracing.services import TracingServices

module = Module[TracingServices](
    package="portside.datasets", routes=http.routes, empty_workspace=empty_workspace, has_migrations=True
)
