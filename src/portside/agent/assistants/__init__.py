"""Assistants: `records` makes, finds, changes and deletes them."""
