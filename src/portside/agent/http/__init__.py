"""The agent server's routes: decode, authorise, one call into the domain, encode."""
