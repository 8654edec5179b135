"""Version 1 of the core API: `core.proto` documents it, `core_pb2` is generated (`make generate`)."""
