"""What agents remember across threads: langgraph's store in Postgres, and the same items over HTTP.

`items` asks the database, `store` is what graphs are given, `requests` serves the routes, `chores` forgets and embeds
anew in the background. Why it is built so, with figures: docs/why/store.md.
"""
