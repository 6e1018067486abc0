"""HTTP: each endpoint parses, calls one use case and shapes the answer."""
