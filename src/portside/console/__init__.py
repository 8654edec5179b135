"""The console: the pages of the platform for people.

The pages are one application in TypeScript (`console/` in the repository). `scripts/javascript.py` builds it into
`static/`, and this package serves those files. It has no data of its own: the pages use the public routes of the
platform.
"""
