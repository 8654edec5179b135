"""The named queries of identity."""

from portside.kernel.db import Queries

sql = Queries("portside.identity")
