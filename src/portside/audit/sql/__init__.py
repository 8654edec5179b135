"""The named queries of the audit log."""

from portside.kernel.db import Queries

sql = Queries("portside.audit")
