"""The named queries of prompts."""

from portside.kernel.queries import Queries

sql = Queries("portside.prompts")
