"""The named queries of datasets."""

from portside.kernel.queries import Queries

sql = Queries("portside.datasets")
