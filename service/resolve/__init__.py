"""From the names of a request to values that the models compute with."""
