"""Access: `authentication` finds the caller of a request, and `service` decides what the caller may do.

Every route but the public ones passes the guard of `service`, and every route that touches a resource calls one of its
`authorize…` methods first. Without authentication these return at once, without a database query.
"""
