"""Threads: `records` makes, finds, changes and deletes them; `states` reads and changes what their graphs remember."""
