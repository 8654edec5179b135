"""The command line. Each command is a module of its own; what is heavy is imported inside it."""
