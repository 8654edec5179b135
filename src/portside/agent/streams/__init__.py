"""The events of runs on their way to clients: one feed per run in this process, and the hub that finds it."""
