"""Backups: the encrypted file, what is in it, where it is stored, and how a platform is made from it again.

Knows the home folder and Postgres, but no table of the platform.
"""
