"""Resolution: the names of a request become values that the models compute with."""
