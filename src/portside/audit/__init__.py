"""The audit log: who changed what and when, and who read a secret. No entry is ever changed; old ones expire.

Routes are declared with what it records of them; `recording.py` writes the entries, `log.py` reads them.
"""
