"""The audit log: who changed what and when, and who read a secret. No entry is ever changed; old ones expire.

`actions.py` names every route that changes something, `recording.py` writes the entries, `log.py` reads them.
"""
