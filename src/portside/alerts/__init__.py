"""Alerts: what an operator must know without looking, sent once when it begins and once when it ends.

`rules.py` measures, `alerts.py` decides what has begun and ended, `channels.py` sends by webhook and mail.
"""
