"""Tracing: ingest of runs as the tracing SDKs send them, and reads of runs, projects, feedback and attachments.

`ingest` parses, merges and stores the batches of clients; a trace is counted once, when its first run is received, and
`usage` adds those counts up. The package knows nothing of deployments: `control` asks for projects by name.
"""
