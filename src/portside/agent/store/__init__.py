"""The memory of agents across threads: langgraph's store in Postgres, and the same items over HTTP.

`items` reads and writes the database for graphs and for `requests`, which serves the routes; `operations` defines the
store's operations, `names` checks namespaces and keys, and `search_index` embeds items. docs/why/store.md has the
design and its figures.
"""
