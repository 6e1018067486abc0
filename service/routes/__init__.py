"""The endpoints. Each one parses the request, calls one use case and shapes the answer."""
