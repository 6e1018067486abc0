"""Limits that the schemas share with what reads texts before a schema sees them."""

MAX_BATCH_REPORTS = 10_000
