"""Access: who sends a request (`authentication`), and what the project's handlers allow (`authorization`, `service`).

Every route but the public ones passes the guard of `service`, and every route that touches a resource calls one of its
`authorize…` methods first. Without authentication these return at once, without a database query.
"""
