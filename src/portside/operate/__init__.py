"""For operators of a platform: its use of the disk, its problems, upgrades, and reports for support.

It reads everything and changes nothing but two things: the notice of a full database, and the system's service.
"""
