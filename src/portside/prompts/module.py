"""The manifest of prompts."""

from portside.kernel.http.routes import BaseServices
from portside.kernel.modules import Module
from portside.prompts import http
from portside.prompts.repos import empty_workspace

module = Module[BaseServices](
    package="portside.prompts", routes=list(http.routes), empty_workspace=empty_workspace, has_migrations=True
)
