"""One module for each resource; every public coroutine function is a scene."""
