"""The named queries of rate limits."""

from portside.kernel.queries import Queries

sql = Queries("portside.limits")
