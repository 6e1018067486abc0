"""The models of transformers, hardware and time. They use numpy, numba and the standard library
only, with no HTTP, SQL or clock."""
