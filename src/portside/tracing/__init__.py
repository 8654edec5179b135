"""Traces in, and read again: runs as the tracing SDKs send them, the projects they belong to, feedback, attachments.

A delivery is decoded (`deliveries`), laid together per run (`folding`) and written (`ingest`), where a trace is counted
once at its first receipt; `usage` adds those counts up. Knows no deployment: control asks for projects by name.
"""
