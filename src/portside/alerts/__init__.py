"""Alerts: problems that an operator must know about, sent once when they begin and once when they end.

`rules.py` measures, `alerts.py` decides which alerts begin and end, `channels.py` sends by webhook and mail.
"""
