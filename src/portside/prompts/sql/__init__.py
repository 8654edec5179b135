"""The named queries of prompts."""

from portside.kernel.db import Queries

sql = Queries("portside.prompts")
