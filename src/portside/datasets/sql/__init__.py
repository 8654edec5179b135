"""The named queries of datasets."""

from portside.kernel.db import Queries

sql = Queries("portside.datasets")
