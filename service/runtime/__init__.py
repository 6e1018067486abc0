"""How work runs: turns, processes, deadlines, idempotency and caches."""
