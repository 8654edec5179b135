"""The named queries of annotation."""

from portside.kernel.db import Queries

sql = Queries("portside.annotation")
