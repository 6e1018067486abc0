"""The machinery that work runs on: admission, processes, deadlines, idempotency and caches."""
