"""The REST service around the models: everything with a side effect."""

__version__ = "0.1.0"
