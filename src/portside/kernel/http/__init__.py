"""HTTP: typed routes, OpenAPI, server-sent events, middleware and the server itself."""
