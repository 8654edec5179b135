"""The named queries of identity."""

from portside.kernel.queries import Queries

sql = Queries("portside.identity")
