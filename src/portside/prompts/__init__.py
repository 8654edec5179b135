"""Prompts: repositories of manifests with their commits, tags and likes.

A manifest is whatever JSON object a client makes of a prompt; nothing here executes one.
"""
