"""Compilation of the cost model to machine code, which is kept from one process to the next."""
