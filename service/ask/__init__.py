"""The use cases that answer a question."""
