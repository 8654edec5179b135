"""The manifest of annotation, whose handlers use the services of tracing."""

from portside.annotation import http
from portside.annotation.queues import empty_workspace
from portside.kernel.modules import Module
from portside.tracing.services import TracingServices

module = Module[TracingServices](
    package="portside.annotation", routes=list(http.routes), empty_workspace=empty_workspace, has_migrations=True
)
