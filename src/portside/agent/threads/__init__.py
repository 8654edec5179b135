"""Threads: `records` creates, finds, changes and deletes them; `states` reads and changes the state of their graphs."""
