"""The named queries of control."""

from portside.kernel.queries import Queries

sql = Queries("portside.control")
