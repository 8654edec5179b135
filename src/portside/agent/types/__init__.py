"""The structs of the agent server's API. Import only msgspec and the kernel's vocabulary."""
