"""The room's named queries."""

from portside.kernel.queries import Queries

sql = Queries("portside.dataplane")
