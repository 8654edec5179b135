"""The named queries of usage."""

from portside.kernel.db import Queries

sql = Queries("portside.usage")
