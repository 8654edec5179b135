"""The agent server's named queries, one file per resource. The header of a query declares what is encrypted."""

from portside.agent.sql.declarations import parse_header
from portside.kernel.db import Queries

sql = Queries("portside.agent", parse_header)
