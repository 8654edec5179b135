"""Runs: `requests` turns what a client asks into what is stored and executed, `service` makes, executes and follows."""
