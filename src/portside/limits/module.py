"""The manifest of the rate limits, which have a table but no routes of their own."""

from portside.kernel.http.routes import BaseServices
from portside.kernel.modules import Module

module = Module[BaseServices](package="portside.limits", has_migrations=True)
