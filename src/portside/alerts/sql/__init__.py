"""The named queries of alerts."""

from portside.kernel.db import Queries

sql = Queries("portside.alerts")
