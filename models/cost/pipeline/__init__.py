"""Pipelines: the split of layers over stages, the order of passes, and the time that they take."""
