"""The use cases that take in what was measured and learn from it."""
