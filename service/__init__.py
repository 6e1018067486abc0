"""The REST service around the models: everything with a side effect."""
