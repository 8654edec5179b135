"""Backups: the encrypted file, its contents, where it is stored, and restoring a platform from it.

Knows the home folder and Postgres, but no table of the platform.
"""
