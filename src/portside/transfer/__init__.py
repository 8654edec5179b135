"""Carries data from one server to another: `portside import`.

It is a client of two servers and uses nothing but their HTTP APIs. Each kind of item has a module with a function that
carries all items of the kind. What was carried is known by the ids at the target, and each item is created by one
request, so an import that was interrupted at any moment is started again and goes on. No journal is kept.
"""
