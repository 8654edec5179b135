"""The named queries of usage."""

from portside.kernel.queries import Queries

sql = Queries("portside.usage")
