"""The command line. `main.py` imports a command's module when the command runs.

Modules import heavy libraries inside their commands, so that `--help` stays fast.
"""
