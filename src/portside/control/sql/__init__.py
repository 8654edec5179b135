"""The named queries of control."""

from portside.kernel.db import Queries

sql = Queries("portside.control")
