"""The agent server's named queries, one file per resource. Each says what of it is encrypted (`declarations`)."""

from portside.agent.sql.declarations import parse_header
from portside.kernel.db import Queries

sql = Queries("portside.agent", parse_header)
