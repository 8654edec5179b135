"""The named queries of tracing."""

from portside.kernel.queries import Queries

sql = Queries("portside.tracing")
