"""What agents remember across threads: langgraph's store in Postgres, and the same items over HTTP.

`items` reads and writes the database, `store` is what graphs get, `requests` serves the routes, and `search_index`
embeds items. The design and its figures: docs/why/store.md.
"""
