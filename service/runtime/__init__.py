"""How work runs: admission, processes, deadlines, idempotency and caches."""
