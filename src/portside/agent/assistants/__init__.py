"""Assistants: `records` makes, finds, changes and deletes them; `descriptions` tells what their graphs look like."""
