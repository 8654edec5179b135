"""The named queries of rate limits."""

from portside.kernel.db import Queries

sql = Queries("portside.limits")
