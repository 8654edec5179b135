"""The named queries of annotation."""

from portside.kernel.queries import Queries

sql = Queries("portside.annotation")
