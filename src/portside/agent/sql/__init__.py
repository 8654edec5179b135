"""The agent server's named queries, one file per resource."""

from portside.kernel.queries import Queries

sql = Queries("portside.agent")
