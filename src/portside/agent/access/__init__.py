"""Access: who asks (`authentication`), and what the project's handlers let them do (`service`).

Every route but the public ones passes the guard; every route that touches a resource asks `may` or `see_…` before it
does. Where no authentication is configured all of that returns at once and costs no trip to the database.
"""
