"""The named queries of this package."""

from portside.kernel.db import Queries

sql = Queries("portside.operate")
