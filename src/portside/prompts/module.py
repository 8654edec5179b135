"""The manifest of prompts."""

from portside.kernel.http.routes import BaseServices
from portside.kernel.modules import Module
from portside.prompts import http

module = Module[BaseServices](package="portside.prompts", routes=list(http.routes), has_migrations=True)
