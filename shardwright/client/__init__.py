"""Requests to a service and what comes back, synchronous and asynchronous from one source."""
