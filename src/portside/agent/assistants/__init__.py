"""Assistants: `records` creates, finds, changes and deletes them; `descriptions` describes their graphs."""
