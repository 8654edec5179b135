"""The named queries of tracing."""

from portside.kernel.db import Queries

sql = Queries("portside.tracing")
